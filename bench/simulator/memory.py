"""The searcher's memory on virtual time: the real arena without bytes in it, and the engine that
fills it.

It stands where `ClusterMemory` and the io_uring engine stand: a cluster lies in pieces of the arena
as it really would, is read in blocks of those, demands before prefetches (the engine's own books,
`WaitingReads`), on one thread that hands blocks to the kernel, then verifies those that have come,
and only then looks up again. While the search thread computes, the engine's thread has to wait for
the interpreter before a turn: `ComputeCosts.handover_us`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import SimulatedDisk
from schemas.record import ClusterId
from searcher.memory.arena import Arena, Spans
from searcher.memory.cluster_reads import split
from searcher.store.engine import READ_BYTES_MAX, BlockRead
from searcher.store.waiting import WaitingReads

OnEnd = Callable[[ClusterId, bool], None]
"""Told (cluster, whether it was cancelled) of the end of a read, at the present time, on the
engine's thread.
"""


class Shape(NamedTuple):
    """How memory is cut. `depth`: blocks with the kernel at once, `prefetch_depth` of them read
    ahead.
    """

    budget_bytes: int
    block_bytes: int
    page_bytes: int
    depth: int = 16
    prefetch_depth: int = 2


@dataclass(slots=True)
class _Load:
    cluster: ClusterId
    began_us: float
    tokens: set[int] = field(default_factory=set)
    is_cancelled: bool = False


class _Block(NamedTuple):
    load: _Load
    size_bytes: int
    pieces: int


class SimulatedMemory:
    """Clusters in an arena. Time only moves forward, by `advance`; whatever else is called happens
    at the present time.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        size_bytes: Mapping[ClusterId, int],
        disk: SimulatedDisk,
        costs: ComputeCosts,
        on_end: OnEnd,
    ) -> None:
        """`size_bytes`: of each cluster on disk. `on_end` may call everything here but
        `advance`.
        """
        self._size_bytes = size_bytes
        self._disk = disk
        self._costs = costs
        self._on_end = on_end
        self._arena = Arena(shape.budget_bytes, shape.block_bytes)
        self._read_bytes = READ_BYTES_MAX // shape.page_bytes * shape.page_bytes
        self._waiting = WaitingReads(depth=shape.depth, prefetch_depth=shape.prefetch_depth)
        self._spans: dict[ClusterId, Spans] = {}  # of every cluster that is here or being read
        self._loads: dict[ClusterId, _Load] = {}
        self._blocks: dict[int, _Block] = {}
        self._next_token = 1
        self._now_us = 0.0
        self._arrived: deque[int] = deque()  # with the engine's thread, to be verified
        self._busy_until_us: float | None = None  # with the first of them
        self._wanted_us: float | None = (
            None  # since when the engine's thread, idle, has had something to do
        )
        self.bytes_read = 0
        self.read_us: list[float] = []
        """How long each read took, in the order in which they ended."""

    def begin_read(self, cluster: ClusterId, *, is_prefetch: bool) -> None:
        """Starts to read a cluster that is not here; there must be room."""
        assert cluster not in self._spans, f"cluster {cluster} is here already"
        spans = self._arena.allocate(self._size_bytes[cluster])
        assert spans is not None, "the plan is overdrawn"
        load = _Load(cluster, self._now_us)
        self._spans[cluster], self._loads[cluster] = spans, load
        reads = []
        for _, buffers in split(
            self._arena.views(spans), self._size_bytes[cluster], self._read_bytes
        ):
            token, self._next_token = self._next_token, self._next_token + 1
            self._blocks[token] = _Block(
                load, sum(buffer.nbytes for buffer in buffers), len(buffers)
            )
            load.tokens.add(token)
            reads.append(
                BlockRead(
                    token=token, file=0, offset_bytes=0, buffers=buffers, is_prefetch=is_prefetch
                )
            )
        self.bytes_read += self._size_bytes[cluster]
        self._waiting.put(reads)
        self._wake()

    def promote(self, cluster: ClusterId) -> None:
        """Its reads are demands from now on. Another cluster is passed over."""
        if (load := self._loads.get(cluster)) is not None:
            self._waiting.promote(tuple(load.tokens))
            self._wake()

    def cancel(self, cluster: ClusterId) -> None:
        """Drops what the kernel has not got. The read ends with the rest of it: as cancelled, or
        well if nothing was dropped.
        """
        if (load := self._loads.get(cluster)) is not None:
            dropped = self._waiting.cancel(tuple(load.tokens))
            load.tokens.difference_update(dropped)
            for token in dropped:
                self.bytes_read -= self._blocks.pop(token).size_bytes
            load.is_cancelled |= bool(dropped)
            if not load.tokens:
                self._end(load)

    def evict(self, cluster: ClusterId) -> None:
        """Forgets a cluster that is here."""
        self._arena.free(self._spans.pop(cluster))

    @property
    def disk_busy_us(self) -> float:
        """How long bytes were coming from the disk."""
        return self._disk.busy_us

    def pieces(self, cluster: ClusterId) -> int:
        """Returns in how many pieces a cluster lies that is here."""
        return len(self._spans[cluster])

    def next_us(self) -> float | None:
        """Returns when something happens next here while the search thread sleeps, None when
        nothing will.
        """
        return self._next_us(0.0)

    def advance(self, now_us: float, *, is_asleep: bool = False) -> None:
        """Moves time to `now_us`, the search thread computing or asleep meanwhile, and tells what
        ended until then.
        """
        handover_us = 0.0 if is_asleep else self._costs.handover_us
        while (moment_us := self._next_us(handover_us)) is not None and moment_us <= now_us:
            self._go_to(moment_us)
            if self._busy_until_us is not None:
                self._verified()
            elif self._wanted_us is not None and self._wanted_us + handover_us <= moment_us:
                self._turn()
        self._go_to(max(self._now_us, now_us))

    # ---- the engine's thread

    def _next_us(self, handover_us: float) -> float | None:
        if self._busy_until_us is not None:
            return self._busy_until_us
        if self._wanted_us is not None:
            return max(self._now_us, self._wanted_us + handover_us)
        return self._disk.next_us()

    def _go_to(self, now_us: float) -> None:
        self._now_us = max(self._now_us, now_us)
        self._disk.advance(self._now_us)
        if self._busy_until_us is None and self._wanted_us is None and self._disk.has_ended():
            self._wanted_us = self._now_us

    def _wake(self) -> None:
        if self._busy_until_us is None and self._wanted_us is None:
            self._wanted_us = self._now_us

    def _turn(self) -> None:
        """Takes what has ended, hands out what waits, begins to verify."""
        self._wanted_us = None
        for token in self._disk.take_ended():
            self._waiting.end(token, 0)
            self._arrived.append(token)
        while (read := self._waiting.take(0)) is not None:
            self._disk.give(read.token, self._blocks[read.token].size_bytes)
        self._verify_next()

    def _verify_next(self) -> None:
        self._busy_until_us = None
        if self._arrived:
            block = self._blocks[self._arrived[0]]
            self._busy_until_us = self._now_us + self._costs.verifying_us(
                block.size_bytes, block.pieces
            )

    def _verified(self) -> None:
        token = self._arrived.popleft()
        load = self._blocks.pop(token).load
        load.tokens.remove(token)
        self._verify_next()
        if not load.tokens:
            self._end(load)
        if self._busy_until_us is None:
            self._turn()  # it looks up once more before it sleeps

    def _end(self, load: _Load) -> None:
        del self._loads[load.cluster]
        if load.is_cancelled:
            self._arena.free(self._spans.pop(load.cluster))
        self.read_us.append(self._now_us - load.began_us)
        self._on_end(load.cluster, load.is_cancelled)
