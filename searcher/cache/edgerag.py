"""EdgeRAG's cost-aware policy: evict the cluster whose profiled read latency × access count is least.

As CaGR-RAG describes and compares it (sections 2.3 and 4.1): read latencies are profiled when the index is built, and
the cache "prioritizes cluster with high generation latency and accessed count". Nothing is said of ageing, so counts
only grow. Do not use it where the traffic's favourites change: what was popular long ago stays.
Cost: `touch`, `insert`, `remove` O(1); `victim` O(resident clusters).
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from schemas.record import ClusterId


class EdgeRag:
    """Read latency × access count. Accesses are counted whether or not the cluster is resident, and outlive eviction."""

    def __init__(self, read_latency_us: Mapping[ClusterId, int]) -> None:
        self._read_latency_us = read_latency_us
        self._accesses: dict[ClusterId, int] = {}
        self._resident: set[ClusterId] = set()

    def touch(self, cluster: ClusterId) -> None:
        """Counts an access."""
        self._accesses[cluster] = self._accesses.get(cluster, 0) + 1

    def insert(self, cluster: ClusterId) -> None:
        """Adds a cluster; one that nobody has asked for yet is worth nothing."""
        assert cluster not in self._resident, f"cluster {cluster} is resident already"
        self._resident.add(cluster)

    def remove(self, cluster: ClusterId) -> None:
        """Forgets that a cluster is resident, not how often it was asked for."""
        self._resident.remove(cluster)

    def victim(self, protected: Set[ClusterId]) -> ClusterId | None:
        """Returns the cluster of least value that is not protected; the lower id of equals."""
        return min((c for c in self._resident if c not in protected), key=lambda c: (self._value(c), c), default=None)

    def residents(self) -> frozenset[ClusterId]:
        """Returns what is resident."""
        return frozenset(self._resident)

    def _value(self, cluster: ClusterId) -> int:
        # value = profiled read latency × access count; a cluster without a profile costs 1, as in plain LFU
        return self._read_latency_us.get(cluster, 1) * self._accesses.get(cluster, 0)
