"""LFU: evict the cluster that was used least often.

*Perfect* LFU in the terms of Breslau et al., "Web caching and Zipf-like distributions", INFOCOM
1999, section 4: counts outlive eviction, since there are only nlist of them. Under independent
requests of equal sizes it converges to the best fixed set, so it is the fair baseline for policies
that use the future. Do not use it where popular clusters change: counts are never aged
(`farthest_next_use` ages them). Cost: see `RankedPolicy`.
"""

from __future__ import annotations

from searcher.plan.eviction.ranking import Rank, RankedPolicy
from searcher.plan.slices import SliceId


class Lfu(RankedPolicy):
    """Least frequently used; of equals, the least recently used."""

    def __init__(self) -> None:
        super().__init__()
        self._uses: dict[SliceId, Rank] = {}  # rank = (uses, last use)
        self._now = 0  # requests so far

    def touch(self, cluster: SliceId) -> None:
        """Counts a use."""
        self._now += 1
        self._uses[cluster] = (self._rank(cluster)[0] + 1, self._now)
        if cluster in self._ranks:
            self._place(cluster)

    def _rank(self, cluster: SliceId) -> Rank:
        return self._uses.get(cluster, (0, 0))
