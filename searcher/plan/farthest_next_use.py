"""Farthest next use: evict the cluster whose next use is farthest away.

Belady's MIN ("A study of replacement algorithms for a virtual-storage computer", IBM Systems
Journal 5(2), 1966) over the windows that the grouper has read ahead. To keep a cluster costs its
bytes for every window until its next use and saves its bytes once: the value of a byte kept for one
window is 1 / (windows until next use), whatever the size. If all future uses are known, this is
optimal in bytes read, up to one cluster at the edge of the budget. (The bytes of a cluster are
pages that are always used together.)

Beyond the horizon of H windows the next use is estimated: H + 1 / (uses per window), from counts
that fade with `half_life_windows`. That is best if windows use clusters independently of each
other; with H = 0 it is an ageing LFU. It is not optimal where part of a cluster would be enough to
evict (that choice is NP-hard: Chrobak et al., "Caching is hard - even in the fault model", 2010),
nor in waits, since a read's latency is not proportional to its bytes.

Without a horizon, use it only where popular clusters last. Resident clusters are kept sorted by
rank: a victim is wanted far more often than a rank changes, and many protected clusters are passed
over. Cost: `touch` O(1); `insert`, `remove` O(log resident), 1-2 us at 1,000 clusters;
`set_horizon` O(horizon); `victim` 25 ns for each protected cluster that it passes, 2 us for each
cluster used since the last call, and at the first call of a window O(resident log resident), 1 ms
at 1,000.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Set
from itertools import filterfalse

from searcher.plan.slices import SliceId

Rank = tuple[float, float]

_SCALE_MAX = 1e100  # long before a float64 overflows


class FarthestNextUse:
    """Belady within the horizon, aged frequency beyond it. Counts outlive eviction.

    Pure and deterministic: of equals, the lower cluster id is evicted first.
    """

    def __init__(self, half_life_windows: int = 50) -> None:
        """A use counts half after `half_life_windows` windows; 0: uses never fade."""
        self._ranks: dict[SliceId, Rank] = {}
        self._sorted: list[tuple[Rank, SliceId]] = []
        self._order: list[SliceId] = []  # the clusters of `_sorted`, in its order
        self._growth = 2.0 ** (1.0 / half_life_windows) if half_life_windows else 1.0
        self._use_weight = 1.0  # of a use now: new uses weigh more, instead of fading all counts
        self._weights: dict[SliceId, float] = {}
        self._window = 0
        self._next_use: dict[SliceId, int] = {}  # the number of the window of the next use
        self._moved: set[SliceId] = set()  # used since they were ranked: many uses, one move
        self._has_all_moved = False  # a window began since they were ranked

    def touch(self, cluster: SliceId) -> None:
        """Counts a use of `cluster`, resident or not."""
        self._weights[cluster] = self._weights.get(cluster, 0.0) + self._use_weight
        self._moved.add(cluster)

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        """Begins a window, before its queries touch a cluster: sets the next uses; old ones fade.

        `horizon` says in how many windows a cluster is needed next, 1 for the window after this
        one. It is advice: it may be out of date, or name clusters that do not exist.
        """
        self._window += 1
        self._next_use = {cluster: self._window + windows for cluster, windows in horizon.items()}
        self._use_weight *= self._growth
        if self._use_weight > _SCALE_MAX:
            self._weights = {
                cluster: weight / self._use_weight for cluster, weight in self._weights.items()
            }
            self._use_weight = 1.0
        self._has_all_moved = True

    def insert(self, cluster: SliceId) -> None:
        """Adds `cluster` to the residents; it must not be among them."""
        assert cluster not in self._ranks, f"cluster {cluster} is resident already"
        self._place(cluster)

    def remove(self, cluster: SliceId) -> None:
        """Removes `cluster` from the residents. Raises `KeyError` if it is not among them."""
        self._take(cluster)

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the unprotected cluster of farthest next use; of equals, the least used.

        None if there is none. Changes no later answer; the caller may evict another cluster.
        """
        self._settle()
        return next(filterfalse(protected.__contains__, self._order), None)

    def residents(self) -> frozenset[SliceId]:
        """Returns the resident clusters; for checks."""
        return frozenset(self._ranks)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where ranks, counts and horizon differ."""
        self._settle()
        assert self._sorted == sorted((rank, cluster) for cluster, rank in self._ranks.items())
        assert self._order == [cluster for _, cluster in self._sorted]
        assert all(rank == self._rank(cluster) for cluster, rank in self._ranks.items())

    def _settle(self) -> None:
        """Brings the ranks up to date."""
        if self._has_all_moved:
            self._ranks = {cluster: self._rank(cluster) for cluster in self._ranks}
            self._sorted = sorted((rank, cluster) for cluster, rank in self._ranks.items())
            self._order = [cluster for _, cluster in self._sorted]
            self._has_all_moved = False
            self._moved.clear()
        for cluster in self._moved:
            if cluster in self._ranks:
                self._place(cluster)
        self._moved.clear()

    def _rank(self, cluster: SliceId) -> Rank:
        # The least is evicted first. Beyond the horizon E[next use] = H + 1 / frequency: the rarest
        # first. Then the clusters in the horizon, the farthest first.
        weight = self._weights.get(cluster, 0.0)
        next_use = self._next_use.get(cluster)
        return (float("-inf"), weight) if next_use is None else (-next_use, weight)

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

    def _take(self, cluster: SliceId) -> None:
        rank = self._ranks.pop(cluster)
        position = bisect_left(self._sorted, (rank, cluster))
        del self._sorted[position]
        del self._order[position]
