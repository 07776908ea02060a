"""A ranking of resident clusters that is kept sorted, so that finding a victim is a walk and not a
search.

Policies that rank by a number share it. The planner asks for a victim far more often than a rank
changes, and most of what it finds first is protected: the walk runs over plain ids without a step
of Python for each of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Set
from itertools import filterfalse

from searcher.plan.slices import SliceId

Rank = tuple[float, float]


class Ranking:
    """Clusters by rank, least first; the lower id of equals first.

    Cost: `place`, `take` O(log n) comparisons and one move of n pointers, 1-2 us at 1,000 clusters;
    `replace_all` O(n log n); `first` 25 ns for each protected cluster that it passes.
    """

    def __init__(self) -> None:
        self._ranks: dict[SliceId, Rank] = {}
        self._sorted: list[tuple[Rank, SliceId]] = []
        self._order: list[SliceId] = []  # the clusters of `_sorted`, in its order

    def __contains__(self, cluster: object) -> bool:
        return cluster in self._ranks

    def __len__(self) -> int:
        return len(self._ranks)

    def clusters(self) -> Set[SliceId]:
        """Returns what is ranked; a view."""
        return self._ranks.keys()

    def rank(self, cluster: SliceId) -> Rank:
        """Returns the rank of a cluster; `KeyError` when it has none."""
        return self._ranks[cluster]

    def place(self, cluster: SliceId, rank: Rank) -> None:
        """Ranks a cluster, anew if it was ranked before."""
        if cluster in self._ranks:
            if self._ranks[cluster] == rank:
                return
            self.take(cluster)
        entry = (rank, cluster)
        position = bisect_left(self._sorted, entry)
        self._ranks[cluster] = rank
        self._sorted.insert(position, entry)
        self._order.insert(position, cluster)

    def take(self, cluster: SliceId) -> Rank:
        """Takes a cluster out and returns the rank that it had; `KeyError` when it had none."""
        rank = self._ranks.pop(cluster)
        position = bisect_left(self._sorted, (rank, cluster))
        del self._sorted[position]
        del self._order[position]
        return rank

    def replace_all(self, ranks: Mapping[SliceId, Rank]) -> None:
        """Ranks these clusters and no others."""
        self._ranks = dict(ranks)
        self._sorted = sorted((rank, cluster) for cluster, rank in ranks.items())
        self._order = [cluster for _, cluster in self._sorted]

    def first(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the cluster of least rank that is not protected; None when there is none."""
        return next(filterfalse(protected.__contains__, self._order), None)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the order is not that of the ranks."""
        assert self._sorted == sorted((rank, cluster) for cluster, rank in self._ranks.items()), (
            "out of order"
        )
        assert self._order == [cluster for _, cluster in self._sorted], "the walk is not the order"
