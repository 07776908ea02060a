"""What a GPU takes on virtual time: to copy a cluster to it, and to scan clusters on it."""

from __future__ import annotations

import msgspec

from searcher.plan.cluster_blocks import GATHER_COST


class ShardGpuCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a GPU whose shard is scanned as `searcher/shard/gpu.py` does.

    A copy takes `copy_fixed_us`, and its bytes at `copy_bytes_per_us`. A scan takes `launch_us` of
    a core, for all calls of PyTorch together, and then its bytes at `memory_bytes_per_us` times
    `efficiency`. All queries of a scan share its bytes: the products of so few queries wait for
    memory, not for arithmetic. Copies do not slow scans: the GPU has an engine for them.
    """

    name: str
    copy_fixed_us: float
    copy_bytes_per_us: float
    launch_us: float
    memory_bytes_per_us: float
    efficiency: float

    def copy_us(self, size_bytes: int) -> float:
        """Returns how long it takes to copy a cluster to the GPU."""
        return self.copy_fixed_us + size_bytes / self.copy_bytes_per_us

    def scan_us(self, asked_bytes: int, held_bytes: int) -> float:
        """Returns how long the GPU computes for a scan, without `launch_us`.

        `asked_bytes`: of the clusters that any of its queries probes, each once; `held_bytes`: of
        all clusters in the shard. The scan goes over all of them, or gathers those asked for.
        """
        scanned_bytes = min(held_bytes, GATHER_COST * asked_bytes)
        return scanned_bytes / (self.memory_bytes_per_us * self.efficiency)


H100 = ShardGpuCosts(
    name="H100 SXM",
    copy_fixed_us=20.0,  # assumed: two copies and the wait for an event
    copy_bytes_per_us=50_000.0,  # assumed: 80 % of 64 GB/s, half of the data sheet's 128 GB/s
    launch_us=400.0,  # assumed: about 50 calls of PyTorch of 8 us each
    memory_bytes_per_us=3_350_000.0,  # NVIDIA H100 data sheet: 3.35 TB/s
    efficiency=0.6,  # assumed: what the shard must reach for batches of 32
)
"""Not measured: no GPU was there. `carpool bench shard --device gpu` measures a device."""
