"""The slices in memory: the arena that contains them, and the reads that fill it.

The caller decides what to read and what to free, and makes sure that there is room. One thread
reads. Another one verifies pages, and the first scores other slices meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import structlog

from carpool.clock import Clock
from carpool.disk.checked_file import CheckedFile
from carpool.disk.extents import ClusterExtent
from carpool.disk.pages import ClusterPages, PageLayout
from carpool.errors import CorruptionError, ReadError
from carpool.telemetry.metrics import Metrics
from searcher.memory.slice_reads import SliceRead, first_batch, of_cluster, spans_bytes
from searcher.memory.verify import PageVerifier
from searcher.plan.cluster_steps import ReadEnded, ReadEvent, ReadFailed, RoomFreed
from searcher.plan.slices import SliceId
from searcher.store.arena import Arena, Spans
from searcher.store.page_reads import PageBatch, PageReads
from searcher.store.reads_in_flight import READ_BYTES_MAX, ReadsInFlight, timed_out
from searcher.store.waker import Waker

_log = structlog.get_logger(__name__)


IN_FLIGHT_BYTES_MAX = 48 << 20
"""Less: a virtual disk, which completes reads in batches, idles, or it does during a sub-stage: new
reads begin after it. More: urgent reads wait.
"""
AHEAD_MAX = 2
"""Slices with the kernel for later queries; more would delay the reads of a new query."""


class ClusterMemory:
    """Slices of clusters in an arena. For one thread; only `close` blocks.

    It owns arena and reads. The caller closes their files after `close` returned True.
    """

    def __init__(
        self,
        *,
        layout: PageLayout,
        extents: Sequence[ClusterExtent],
        paths: Sequence[str],
        sums: Sequence[CheckedFile],
        arena: Arena,
        reads: PageReads,
        waker: Waker,
        timeout_us: int,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`extents`: by slice; `paths`, the names in errors, and `sums`: by segment.

        `waker` wakes when a batch of `reads` has ended, and when pages were verified.
        """
        assert arena.block_bytes % layout.page_bytes == 0, "a page would straddle two blocks"
        self._extents = extents
        self._arena = arena
        self._timeout_us = timeout_us
        self._verifier = PageVerifier(layout, paths, sums)
        self._metrics = metrics.searcher
        self._metrics.budget_bytes.set(arena.size_bytes)
        for purpose in ("demand", "prefetch"):
            self._metrics.bytes_read.labels(purpose=purpose)  # shown before the first read
        self._clock = clock
        self._waker = waker
        self._loading: dict[SliceId, SliceRead] = {}
        self._loading_bytes = 0
        self._waiting: dict[SliceId, SliceRead] = {}  # of these, the kernel has not begun
        self._in_flight = ReadsInFlight(reads, timeout_us, clock, self._free)
        self._unchecked: list[SliceRead] = []
        self._checks: deque[tuple[list[SliceRead], Future[list[ReadError | None]]]] = deque()
        self._checker = ThreadPoolExecutor(1, "verify")
        self._resident: dict[SliceId, tuple[Spans, ClusterPages]] = {}
        self._last_end_us = clock.now_us()
        self._outbox: list[ReadEvent] = []

    # ---- what the executor calls

    @property
    def arena_bytes_total(self) -> int:
        """Bytes of the arena: the budget."""
        return self._arena.size_bytes

    @property
    def stuck_bytes(self) -> int:
        """Bytes of reads that were given up and that the kernel has not ended."""
        return sum(read.arena_bytes for read in self._in_flight.stuck())

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that are not free."""
        return self._arena.size_bytes - self._arena.free_bytes

    @property
    def times_out_at_us(self) -> int | None:
        """When the oldest read in progress is given up; None while there is none."""
        return self._in_flight.times_out_at_us

    def read_bytes(self, number: SliceId) -> int:
        """Returns the bytes that are read from the disk for a slice: its pages."""
        return self._extents[number].size_bytes

    def arena_bytes(self, number: SliceId) -> int:
        """Returns the bytes that a slice takes in the arena: its pages, in whole blocks."""
        return self._arena.blocks_bytes(self._extents[number].size_bytes)

    def begin_read(self, number: SliceId, *, is_prefetch: bool) -> None:
        """Wants a slice that is not in memory, for which there is room; `advance` reads it."""
        extent = self._extents[number]
        assert number not in self._loading, f"slice {number} is being read already"
        assert number not in self._resident, f"slice {number} is in memory already"
        spans = self._arena.allocate(extent.size_bytes)
        assert spans is not None, (
            f"no room for slice {number} in {self._arena.free_bytes} bytes: the plan is overdrawn"
        )
        read = SliceRead(
            number=number,
            extent=extent,
            purpose="prefetch" if is_prefetch else "demand",
            spans=spans,
            started_us=self._clock.now_us(),
            is_ahead=is_prefetch,
        )
        self._loading[number] = self._waiting[number] = read
        self._loading_bytes += read.arena_bytes

    def requeue(self, number: SliceId, *, is_ahead: bool) -> None:
        """A read is the last one of those that queries wait for, or of those ahead, from now on.

        A slice that is not being read is ignored.
        """
        if (read := self._loading.get(number)) is not None:
            read.is_ahead = is_ahead
            if number in self._waiting:
                self._waiting[number] = self._waiting.pop(number)

    def evict(self, number: SliceId) -> None:
        """Frees a slice that is in memory; its pages must not be used any more."""
        spans, _ = self._resident.pop(number)
        self._arena.free(spans)
        self._show()

    def pages(self, number: SliceId) -> ClusterPages:
        """Returns the pages of a slice in memory, read-only, valid until it is evicted."""
        return self._resident[number][1]

    def residents(self) -> frozenset[SliceId]:
        """Returns the slices that are in memory, whole."""
        return frozenset(self._resident)

    def advance(self) -> list[ReadEvent]:
        """Starts reads, and returns how reads ended since the last call. Does not block.

        Call it until it returns nothing, and whenever the waker wakes or `times_out_at_us` is over.
        """
        for batch, read in self._in_flight.ended():
            self._end(batch, read)
        self._give_up_waiting()
        self._start()
        self._check()
        self._show()
        events, self._outbox = self._outbox, []
        return events

    def check_integrity(self) -> None:
        """Raises `AssertionError` where slices, reads and arena disagree."""
        self._arena.check_integrity()
        stuck = self._in_flight.stuck()
        spans = [spans for spans, _ in self._resident.values()]
        spans += [read.spans for read in (*self._loading.values(), *stuck)]
        assert self._arena.free_bytes + sum(map(spans_bytes, spans)) == self._arena.size_bytes
        assert self._loading_bytes == sum(read.arena_bytes for read in self._loading.values())
        working = [*self._waiting.values(), *self._in_flight.owners(), *self._unchecked]
        working += [read for reads, _ in self._checks for read in reads]
        assert len(working) == len(self._loading), "a read is lost, or done twice"
        assert all(self._loading[read.number] is read for read in working)

    def close(self, timeout_s: float) -> bool:
        """Ends all reads and frees the memory; blocks for up to `timeout_s`.

        Call nothing but `close` from now on. Returns whether the kernel has ended all reads: the
        files must not be closed before.
        """
        self._checker.shutdown(cancel_futures=True)
        has_ended = self._in_flight.close(timeout_s)
        if has_ended:
            self._resident.clear()
            self._checks.clear()
            self._arena.close()
        return has_ended

    # ---- reads

    def _start(self) -> None:
        """Gives reads to the kernel: those that queries wait for, then those ahead."""
        if not self._waiting:
            return
        begun = self._in_flight.owners()
        begun_bytes = sum(read.extent.size_bytes for read in begun)
        ahead = sum(read.is_ahead for read in begun)
        for read in sorted(self._waiting.values(), key=lambda read: read.is_ahead):
            if begun_bytes >= IN_FLIGHT_BYTES_MAX:
                return
            if read.is_ahead and ahead >= AHEAD_MAX:
                return
            del self._waiting[read.number]
            begun_bytes += read.extent.size_bytes
            ahead += read.is_ahead
            page_bytes = self._verifier.layout.page_bytes
            read_bytes = max(1, READ_BYTES_MAX // page_bytes) * page_bytes
            self._in_flight.submit(first_batch(read, self._arena.view, read_bytes), read)

    def _end(self, batch: PageBatch[Any], read: SliceRead) -> None:
        """A batch has ended, or is given up."""
        read_bytes = int(np.maximum(batch.read_bytes, 0).sum())
        self._metrics.bytes_read.labels(purpose=read.purpose).inc(read_bytes)
        if not batch.is_given_up:
            self._last_end_us = self._clock.now_us()
        if not batch.errors:
            self._unchecked.append(read)
            return
        self._fail(read, batch.errors[min(batch.errors)], is_stuck=batch.is_given_up)

    def _give_up_waiting(self) -> None:
        """Where the disk has ended nothing for so long, what waits for it will not come either."""
        before_us = self._clock.now_us() - self._timeout_us
        if self._waiting and self._last_end_us < before_us:
            for read in [one for one in self._waiting.values() if one.started_us < before_us]:
                del self._waiting[read.number]
                self._fail(read, timed_out(self._timeout_us), is_stuck=False)

    def _check(self) -> None:
        """Has what was read verified, and takes what was found."""
        if self._unchecked:
            reads, self._unchecked = self._unchecked, []
            check = self._checker.submit(self._errors_of, reads)
            check.add_done_callback(lambda _: self._waker.wake())
            self._checks.append((reads, check))
        while self._checks and self._checks[0][1].done():
            reads, check = self._checks.popleft()
            for read, error in zip(reads, check.result(), strict=True):
                if error is None:
                    self._keep(read)
                else:
                    self._fail(read, error, is_stuck=False)

    def _errors_of(self, reads: Sequence[SliceRead]) -> list[ReadError | None]:
        """Called on the thread that verifies."""
        return [self._verifier.check(read.extent, self._views(read)) for read in reads]

    def _views(self, read: SliceRead) -> tuple[memoryview, ...]:
        return self._arena.views(read.used)

    # ---- ends

    def _keep(self, read: SliceRead) -> None:
        self._leave(read)
        pages = self._verifier.pages(read.extent, self._views(read))
        self._resident[read.number] = read.spans, pages
        self._outbox.append(ReadEnded(slice_id=read.number))

    def _fail(self, read: SliceRead, error: ReadError, *, is_stuck: bool) -> None:
        self._leave(read)
        read.is_stuck = is_stuck
        if not is_stuck:
            self._arena.free(read.spans)
        error = of_cluster(error, read.extent, self._verifier.paths[read.extent.segment])
        if isinstance(error, CorruptionError):
            self._metrics.clusters_damaged.inc()
            _log.error("cluster damaged", cluster=read.extent.cluster, error=str(error))
        else:
            _log.error("cluster not read", cluster=read.extent.cluster, error=str(error))
        self._outbox.append(ReadFailed(slice_id=read.number, error=error, is_stuck=is_stuck))

    def _leave(self, read: SliceRead) -> None:
        """A read is over, for the caller."""
        del self._loading[read.number]
        self._loading_bytes -= read.arena_bytes

    def _free(self, read: SliceRead) -> None:
        """The kernel does not use the memory of `read` any more."""
        if read.is_stuck:
            self._arena.free(read.spans)
            self._outbox.append(RoomFreed(slice_id=read.number))

    def _show(self) -> None:
        stuck_bytes = self.stuck_bytes
        shown = self._metrics.resident_bytes
        shown.labels(kind="resident").set(self.used_bytes - self._loading_bytes - stuck_bytes)
        shown.labels(kind="in_flight").set(self._loading_bytes)
        shown.labels(kind="stuck").set(stuck_bytes)
