"""Eviction by rank: the base of the policies that give each cluster a number.

Resident clusters are kept sorted by rank. The planner asks for a victim far more often than a rank
changes, and it passes over many protected clusters: that pass runs without Python code for each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Set
from itertools import filterfalse

from searcher.plan.slices import SliceId

Rank = tuple[float, float]


class RankedPolicy:
    """Evicts the resident cluster of least rank; of equals, the one with the lower id.

    A subclass defines `touch` and `_rank`, and calls `_place` for a resident cluster whose rank
    changed. Cost: `insert`, `remove`, `_place` O(log resident), 1-2 us at 1,000 clusters; `victim`
    25 ns for each protected cluster that it passes.
    """

    def __init__(self) -> None:
        self._ranks: dict[SliceId, Rank] = {}
        self._sorted: list[tuple[Rank, SliceId]] = []
        self._order: list[SliceId] = []  # the clusters of `_sorted`, in its order

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        """Does nothing: this policy does not use the horizon."""

    def insert(self, cluster: SliceId) -> None:
        """Adds a cluster."""
        assert cluster not in self._ranks, f"cluster {cluster} is resident already"
        self._place(cluster)

    def remove(self, cluster: SliceId) -> None:
        """Removes a cluster; its use count stays."""
        self._take(cluster)

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the cluster of least rank that is not protected; None if there is none."""
        return next(filterfalse(protected.__contains__, self._order), None)

    def residents(self) -> frozenset[SliceId]:
        """Returns the resident clusters."""
        return frozenset(self._ranks)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where order, ranks and counts differ."""
        self._check_order()
        assert all(rank == self._rank(cluster) for cluster, rank in self._ranks.items())

    def _check_order(self) -> None:
        assert self._sorted == sorted((rank, cluster) for cluster, rank in self._ranks.items())
        assert self._order == [cluster for _, cluster in self._sorted]

    def _rank(self, cluster: SliceId) -> Rank:
        raise NotImplementedError

    def _place(self, cluster: SliceId) -> None:
        """Inserts a cluster at its current rank."""
        rank = self._rank(cluster)
        if cluster in self._ranks:
            if self._ranks[cluster] == rank:
                return
            self._take(cluster)
        entry = (rank, cluster)
        position = bisect_left(self._sorted, entry)
        self._ranks[cluster] = rank
        self._sorted.insert(position, entry)
        self._order.insert(position, cluster)

    def _place_all(self) -> None:
        """Sorts all resident clusters again. O(n log n)."""
        self._ranks = {cluster: self._rank(cluster) for cluster in self._ranks}
        self._sorted = sorted((rank, cluster) for cluster, rank in self._ranks.items())
        self._order = [cluster for _, cluster in self._sorted]

    def _take(self, cluster: SliceId) -> Rank:
        """Removes a cluster and returns its rank; `KeyError` if it is not resident."""
        rank = self._ranks.pop(cluster)
        position = bisect_left(self._sorted, (rank, cluster))
        del self._sorted[position]
        del self._order[position]
        return rank
