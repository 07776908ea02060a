"""A disk on virtual time: so many reads outstanding, each with an overhead, all sharing one bandwidth. Demands go first.

It does what block engines promise (`searcher.store.engine`): a cluster is read in blocks, a prefetch is handed to the kernel
only while no demand waits, and only so many of them; what the kernel has is not taken back.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import msgspec

from schemas.record import ClusterId


class DiskCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What reads take, in microseconds: a block is done `overhead_us` after its bytes have come through the one pipe.

    `depth`: blocks with the kernel at once, `prefetch_depth` of them read ahead; `block_bytes_max`: of one block.
    """

    overhead_us: float
    bytes_per_us: float
    depth: int = 16
    prefetch_depth: int = 2
    block_bytes_max: int = 1 << 20


@dataclass(slots=True)
class _Load:
    cluster: ClusterId
    is_prefetch: bool
    waiting: list[int]  # sizes of the blocks that the kernel has not got
    began_us: float
    outstanding: int = 0
    is_cancelled: bool = False


class SimulatedDisk:
    """Reads of clusters. Time only moves forward, by `advance`; whatever else is called happens at the present time."""

    def __init__(self, costs: DiskCosts) -> None:
        self._costs = costs
        self._now_us = 0.0
        self._pipe_free_us = 0.0
        self._loads: dict[ClusterId, _Load] = {}  # in the order in which they were asked for, or promoted
        self._with_kernel: list[tuple[float, int, _Load, bool]] = []  # end, tie, whose, whether as a prefetch
        self._prefetches_out = 0
        self._blocks = 0
        self._ended: list[tuple[ClusterId, bool]] = []
        self.busy_us = 0.0
        self.read_us: list[float] = []  # how long each read took, in the order in which they ended

    def read(self, cluster: ClusterId, size_bytes: int, *, is_prefetch: bool) -> None:
        """Asks for a cluster that is not being read."""
        assert cluster not in self._loads, f"cluster {cluster} is being read already"
        block = self._costs.block_bytes_max
        sizes = [min(block, size_bytes - at) for at in range(0, size_bytes, block)]
        self._loads[cluster] = _Load(cluster, is_prefetch, sizes[::-1], self._now_us)
        self._hand_out()

    def promote(self, cluster: ClusterId) -> None:
        """Makes a demand of a prefetch, behind the demands that wait; one that has ended is passed over."""
        if (load := self._loads.pop(cluster, None)) is not None:
            load.is_prefetch = False
            self._loads[cluster] = load
            self._hand_out()

    def cancel(self, cluster: ClusterId) -> None:
        """Drops what the kernel has not got; when the rest has ended, the read ends as cancelled."""
        if (load := self._loads.get(cluster)) is not None and load.waiting:
            load.waiting.clear()
            load.is_cancelled = True
            if not load.outstanding:
                del self._loads[cluster]
                self._ended.append((cluster, True))

    def next_end_us(self) -> float | None:
        """Returns when something ends next, None when nothing is being read."""
        if self._ended:
            return self._now_us
        return self._with_kernel[0][0] if self._with_kernel else None

    def advance(self, now_us: float) -> None:
        """Moves time to `now_us`."""
        while self._with_kernel and self._with_kernel[0][0] <= now_us:
            end_us, _, load, was_prefetch = heapq.heappop(self._with_kernel)
            self._now_us = max(self._now_us, end_us)
            self._prefetches_out -= was_prefetch
            load.outstanding -= 1
            if not load.outstanding and not load.waiting:
                del self._loads[load.cluster]
                self._ended.append((load.cluster, load.is_cancelled))
                self.read_us.append(self._now_us - load.began_us)
            self._hand_out()
        self._now_us = max(self._now_us, now_us)

    def take_ended(self) -> list[tuple[ClusterId, bool]]:
        """Returns the reads that have ended since it was asked last, in order: the cluster, and whether it was cancelled."""
        ended, self._ended = self._ended, []
        return ended

    def _hand_out(self) -> None:
        """Gives the kernel what it may have, at the present time."""
        while len(self._with_kernel) < self._costs.depth and (load := self._next()) is not None:
            size_bytes = load.waiting.pop()
            load.outstanding += 1
            self._prefetches_out += load.is_prefetch
            begin_us = max(self._pipe_free_us, self._now_us)
            self._pipe_free_us = begin_us + size_bytes / self._costs.bytes_per_us
            self.busy_us += self._pipe_free_us - begin_us
            self._blocks += 1
            end_us = self._pipe_free_us + self._costs.overhead_us
            heapq.heappush(self._with_kernel, (end_us, self._blocks, load, load.is_prefetch))

    def _next(self) -> _Load | None:
        waiting = [load for load in self._loads.values() if load.waiting]
        demand = next((load for load in waiting if not load.is_prefetch), None)
        if demand is None and waiting and self._prefetches_out < self._costs.prefetch_depth:
            return waiting[0]
        return demand
