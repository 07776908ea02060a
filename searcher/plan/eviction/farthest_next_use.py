"""Farthest next use: evict the cluster that is wanted again last; what lies beyond the horizon, by
how rarely it is wanted.

Belady's MIN ("A study of replacement algorithms for a virtual-storage computer", IBM Systems
Journal 5(2), 1966) over the windows that the grouper has read ahead. Keeping a cluster costs its
bytes for every window until its next use and saves its bytes once: the value of a byte kept for one
window is 1 / (windows until next use), whatever the size. With the whole future known this is
optimal in bytes read, up to the one cluster that an eviction cuts at the edge of the budget: take
each byte for a page, and the bytes of a cluster are pages that are always wanted together.

Beyond the horizon of H windows the next use is a guess: H + 1 / (how often a window wants the
cluster), from counts that fade with `half_life_windows`. That is best if windows want clusters
independently of each other, and no better than LFU if H is 0. Not optimal: a whole cluster goes
where part of it would do (choosing is then NP-hard: Chrobak et al., "Caching is hard - even in the
fault model", 2010); nor in waits, where the latency of a read is not proportional to its bytes.

Do not use it without a horizon unless favourites last (it is then an ageing LFU), nor where windows
are not announced. Cost: `touch` O(1); `insert`, `remove` O(log resident), 2 us at 1,000;
`set_horizon` O(horizon); `victim` 25 ns for each protected cluster it passes, and 2 us for each
that was used since the last one; the first one of a window O(resident log resident), 1 ms at 1,000.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from searcher.plan.eviction.ranking import Rank, Ranking
from searcher.plan.slices import SliceId

_SCALE_MAX = 1e100  # long before a float64 overflows


class FarthestNextUse:
    """Belady within the horizon, aged frequency beyond it. Counts outlive eviction."""

    def __init__(self, half_life_windows: int = 50) -> None:
        """`half_life_windows`: windows after which a use counts half; 0: uses count the same for
        ever.
        """
        self._growth = 2.0 ** (1.0 / half_life_windows) if half_life_windows else 1.0
        self._use_weight = (
            1.0  # of a use now: instead of fading all counts, what is new weighs more
        )
        self._weights: dict[SliceId, float] = {}
        self._window = 0
        self._next_use: dict[
            SliceId, int
        ] = {}  # the number of the window in which a cluster is wanted next
        self._ranking = Ranking()
        self._moved: set[SliceId] = set()  # used since they were ranked: many uses, one move
        self._has_all_moved = False  # a window began since they were ranked

    def touch(self, cluster: SliceId) -> None:
        """Counts a use."""
        self._weights[cluster] = self._weights.get(cluster, 0.0) + self._use_weight
        self._moved.add(cluster)

    def set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        """Takes in when clusters are wanted next; older uses fade."""
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
        """Adds a cluster."""
        assert cluster not in self._ranking, f"cluster {cluster} is resident already"
        self._ranking.place(cluster, self._rank(cluster))

    def remove(self, cluster: SliceId) -> None:
        """Forgets that a cluster is resident, not how often it was used."""
        self._ranking.take(cluster)

    def victim(self, protected: Set[SliceId]) -> SliceId | None:
        """Returns the unprotected cluster whose next use lies farthest; of equals the rarer, then
        the lower id.
        """
        self._settle()
        return self._ranking.first(protected)

    def residents(self) -> frozenset[SliceId]:
        """Returns what is resident."""
        return frozenset(self._ranking.clusters())

    def check_integrity(self) -> None:
        """Raises `AssertionError` where ranks, counts and horizon differ."""
        self._settle()
        self._ranking.check_integrity()
        assert all(
            self._ranking.rank(cluster) == self._rank(cluster)
            for cluster in self._ranking.clusters()
        )

    def _settle(self) -> None:
        if self._has_all_moved:
            self._ranking.replace_all(
                {cluster: self._rank(cluster) for cluster in self._ranking.clusters()}
            )
            self._has_all_moved = False
            self._moved.clear()
        for cluster in self._moved:
            if cluster in self._ranking:
                self._ranking.place(cluster, self._rank(cluster))
        self._moved.clear()

    def _rank(self, cluster: SliceId) -> Rank:
        # least goes first: beyond the horizon E[next use] = H + 1 / frequency, so the rarest goes
        # first, and all of them before what is in the horizon, where the farthest goes first
        weight = self._weights.get(cluster, 0.0)
        next_use = self._next_use.get(cluster)
        return (float("-inf"), weight) if next_use is None else (-next_use, weight)
