"""What the real run and the simulated one are both given: budget, limits, policy; and the planners made of them."""

from __future__ import annotations

from typing import NamedTuple

from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts, SimulatedDisk
from bench.simulator.memory import OnEnd, Shape, SimulatedMemory
from bench.simulator.trace import Trace
from bench.simulator.ways import Way
from schemas.record import ClusterId
from searcher.cache.policies import make_policy
from searcher.cache.policy import CachePolicy
from searcher.cache.slices import Slices
from searcher.plan.cluster_major import ClusterMajorLimits, ClusterMajorPlanner
from searcher.plan.reads import ReadLimits, ReadPlanner

OVERTAKE_US = 60_000_000
"""A slow read that is passed over changes what is read: no read of a run may be so slow."""


class Rig(NamedTuple):
    """`slices`: how clusters are cut; what they take in memory, in whole blocks of the arena, is `size_bytes` by slice."""

    way: Way
    shape: Shape
    slices: Slices
    size_bytes: dict[ClusterId, int]
    read_ahead_bytes: int
    prefetch_bytes: int
    read_latency_us: dict[ClusterId, int]

    def sliced(self, trace: Trace) -> Trace:
        """Returns `trace` as the planner sees it: slices instead of clusters."""
        extents = self.slices.extents
        return Trace(
            windows=tuple(tuple(map(self.slices.of_all, window)) for window in trace.windows),
            size_bytes={ClusterId(number): extent.size_bytes for number, extent in enumerate(extents)},
            row_count={ClusterId(number): extent.row_count for number, extent in enumerate(extents)},
        )

    def cluster_major(self) -> ClusterMajorPlanner:
        """Returns a new planner, with nothing in memory."""
        limits = ClusterMajorLimits(
            budget_bytes=self.shape.budget_bytes,
            read_ahead_bytes=self.read_ahead_bytes,
            prefetch_bytes=self.prefetch_bytes,
            overtake_us=OVERTAKE_US,
        )
        return ClusterMajorPlanner(limits, self.size_bytes, self._policy())

    def query_by_query(self) -> ReadPlanner:
        """Returns a new planner, with nothing in memory."""
        limits = ReadLimits(
            budget_bytes=self.shape.budget_bytes,
            demand_reads_max=self.shape.depth,
            prefetch_reads_max=self.shape.prefetch_depth,
            prefetch=self.way.prefetch,
        )
        return ReadPlanner(limits, self.size_bytes, self._policy())

    def memory(self, sliced: Trace, disk: DiskCosts, costs: ComputeCosts, on_end: OnEnd) -> SimulatedMemory:
        """Returns empty memory on virtual time."""
        return SimulatedMemory(
            shape=self.shape, size_bytes=sliced.size_bytes, disk=SimulatedDisk(disk), costs=costs, on_end=on_end
        )

    def _policy(self) -> CachePolicy:
        return make_policy(
            self.way.policy,
            size_bytes=self.size_bytes,
            budget_bytes=self.shape.budget_bytes,
            read_latency_us=self.read_latency_us,
        )
