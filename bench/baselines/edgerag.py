"""EdgeRAG's cost-aware policy: evict the cluster of least measured read latency × access count.

As CaGR-RAG describes and compares it (sections 2.3 and 4.1): read latencies are measured before
questions come, and the cache "prioritizes cluster with high generation latency and accessed count".
The paper mentions no ageing, so counts only grow. Do not use it where popular clusters change (a
cluster that was popular long ago stays), nor to save bytes rather than waits: it prefers one large
cluster to several small ones that save more reads for the same bytes. Cost: see `RankedPolicy`.
"""

from __future__ import annotations

from collections.abc import Mapping

from searcher.plan.eviction.ranking import Rank, RankedPolicy
from searcher.plan.slices import SliceId


class EdgeRag(RankedPolicy):
    """Read latency × access count. Clusters that are not resident are counted too."""

    def __init__(self, read_latency_us: Mapping[SliceId, int]) -> None:
        """A cluster without a measured latency costs 1, as in plain LFU."""
        super().__init__()
        self._read_latency_us = read_latency_us
        self._accesses: dict[SliceId, int] = {}

    def touch(self, cluster: SliceId) -> None:
        """Counts an access."""
        self._accesses[cluster] = self._accesses.get(cluster, 0) + 1
        if cluster in self._ranks:
            self._place(cluster)

    def _rank(self, cluster: SliceId) -> Rank:
        # value = measured read latency × access count
        return (self._read_latency_us.get(cluster, 1) * self._accesses.get(cluster, 0), 0)
