"""GDSF: evict the cluster of least age + uses × cost / size; the age rises with each eviction.

Greedy-Dual-Size-Frequency: Cherkasova, "Improving WWW proxies performance with
Greedy-Dual-Size-Frequency caching policy", HP Laboratories HPL-98-69, 1998; the ageing is that of
GreedyDual (Young 1994). With cost = bytes it is LFU with dynamic ageing and saves bytes. With cost
= profiled read latency it saves waits and prefers small clusters. Do not use it where a window
needs about as many bytes as the budget: each new cluster enters above the age and evicts a better
one. Cost: see `RankedPolicy`.
"""

from __future__ import annotations

from collections.abc import Mapping

from searcher.plan.eviction.ranking import Rank, RankedPolicy
from searcher.plan.slices import SliceId


class Gdsf(RankedPolicy):
    """Age plus frequency × cost / size. An eviction sets the uses of a cluster back to zero."""

    def __init__(self, cost: Mapping[SliceId, int], size_bytes: Mapping[SliceId, int]) -> None:
        """`cost` of reading a cluster, in any unit; without cost or size, it is 1 a byte."""
        super().__init__()
        self._cost_per_byte = {
            cluster: cost[cluster] / size
            for cluster, size in size_bytes.items()
            if size and cluster in cost
        }
        self._age = 0.0
        self._uses: dict[SliceId, int] = {}  # of resident clusters, and of those not read yet

    def touch(self, cluster: SliceId) -> None:
        """Counts a use; a resident cluster gets a priority of the present age."""
        self._uses[cluster] = self._uses.get(cluster, 0) + 1
        if cluster in self._ranks:
            self._place(cluster)

    def insert(self, cluster: SliceId) -> None:
        """Adds a cluster at the present age; without a use so far, it counts as used once."""
        self._uses.setdefault(cluster, 1)
        super().insert(cluster)

    def remove(self, cluster: SliceId) -> None:
        """Forgets a cluster and its uses; the age rises to its priority."""
        self._age = max(self._age, self._take(cluster)[0])
        del self._uses[cluster]

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the order is wrong or a resident cluster has no uses."""
        self._check_order()  # priorities keep the age at which they were computed
        assert all(self._uses[cluster] > 0 for cluster in self._ranks)

    def _rank(self, cluster: SliceId) -> Rank:
        # Pr(f) = L + Fr(f) × C(f) / S(f)
        return (self._age + self._uses[cluster] * self._cost_per_byte.get(cluster, 1.0), 0.0)
