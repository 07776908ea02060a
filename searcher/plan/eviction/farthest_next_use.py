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

Without a horizon, use it only where popular clusters last. Windows must be announced. Cost: `touch`
O(1); `set_horizon` O(horizon); `victim` 2 us for each cluster used since the last call, and at the
first call of a window O(resident log resident), 1 ms at 1,000; else see `RankedPolicy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from searcher.plan.eviction.ranking import Rank, RankedPolicy
from searcher.plan.slices import SliceId

_SCALE_MAX = 1e100  # long before a float64 overflows


class FarthestNextUse(RankedPolicy):
    """Belady within the horizon, aged frequency beyond it. Counts outlive eviction."""

    def __init__(self, half_life_windows: int = 50) -> None:
        """`half_life_windows`: after so many windows a use counts half; 0: uses never fade."""
        super().__init__()
        self._growth = 2.0 ** (1.0 / half_life_windows) if half_life_windows else 1.0
        self._use_weight = 1.0  # of a use now: new uses weigh more, instead of fading all counts
        self._weights: dict[SliceId, float] = {}
        self._window = 0
        self._next_use: dict[SliceId, int] = {}  # the number of the window of the next use
        self._moved: set[SliceId] = set()  # used since they were ranked: many uses, one move
        self._has_all_moved = False  # a window began since they were ranked

    def touch(self, cluster: SliceId) -> None:
        """Counts a use."""
        self._weights[cluster] = self._weights.get(cluster, 0.0) + self._use_weight
        self._moved.add(cluster)

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        """Begins a window: sets the next uses; earlier uses fade."""
        self._window += 1
        self._next_use = {cluster: self._window + windows for cluster, windows in horizon.items()}
        self._use_weight *= self._growth
        if self._use_weight > _SCALE_MAX:
            self._weights = {
                cluster: weight / self._use_weight for cluster, weight in self._weights.items()
            }
            self._use_weight = 1.0
        self._has_all_moved = True

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the unprotected cluster of farthest next use; of equals, the least used."""
        self._settle()
        return super().victim(protected)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where ranks, counts and horizon differ."""
        self._settle()
        super().check_integrity()

    def _settle(self) -> None:
        """Brings the ranks up to date."""
        if self._has_all_moved:
            self._place_all()
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
