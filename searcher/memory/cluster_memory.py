"""The slices in memory: the arena that contains them, and the reads that fill it.

The caller decides what to read and what to free, and makes sure that there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import structlog

from carpool.clock import Clock
from carpool.disk.extents import ClusterExtent
from carpool.disk.pages import ClusterPages, PageLayout
from carpool.errors import CorruptionError, ReadError, RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.plan.cluster_steps import ReadEnded, ReadEvent, ReadFailed, RoomFreed
from searcher.plan.slices import SliceId
from searcher.store.arena import Spans, cut_spans
from searcher.store.page_reads import PageBatch
from searcher.store.reader import CLOSE_TIMEOUT_S, Reader, timed_out

_log = structlog.get_logger(__name__)

READ_BYTES_MAX = 1 << 20
"""Of one read: large enough for a disk's full rate, small enough that many are done at a time."""
IN_FLIGHT_BYTES_MAX = 48 << 20
"""Less: a virtual disk, which completes reads in batches, idles, or it does during a sub-stage: new
reads begin after it. More: urgent reads wait.
"""
AHEAD_MAX = 2
"""Slices with the kernel for later queries; more would delay the reads of a new query."""


@dataclass(kw_only=True, slots=True, eq=False)
class SliceRead:
    """The read of a slice into `spans`. `purpose`: for a query in progress, or ahead.

    `is_ahead`: no query waits for it now.
    """

    number: SliceId
    extent: ClusterExtent
    purpose: Literal["demand", "prefetch"]
    spans: Spans
    started_us: int
    is_ahead: bool


class ClusterMemory:
    """Slices of clusters in an arena. For one thread; only `close` blocks."""

    def __init__(
        self,
        *,
        layout: PageLayout,
        extents: Sequence[ClusterExtent],
        reader: Reader[SliceRead],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`extents` is by slice; `reader` reads the segments, and its memory is the arena."""
        self.reader = reader
        self._arena = reader.memory
        assert self._arena.block_bytes % layout.page_bytes == 0, "a page would straddle two blocks"
        self._layout = layout
        self._extents = extents
        self._metrics = metrics.searcher
        self._metrics.budget_bytes.set(self._arena.size_bytes)
        for purpose in ("demand", "prefetch"):
            self._metrics.bytes_read.labels(purpose=purpose)  # shown before the first read
        self._clock = clock
        self._loading: dict[SliceId, SliceRead] = {}
        self._loading_bytes = 0
        self._waiting: dict[SliceId, SliceRead] = {}  # of these, the kernel has not begun
        self._stuck: list[PageBatch[SliceRead]] = []
        self._resident: dict[SliceId, tuple[Spans, ClusterPages]] = {}
        self._last_end_us = clock.now_us()
        self._outbox: list[ReadEvent] = []

    # ---- what the executor calls

    @property
    def arena_bytes_total(self) -> int:
        """Bytes of the arena: the budget."""
        return self._arena.size_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that are not free."""
        return self._arena.size_bytes - self._arena.free_bytes

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
        self._loading_bytes += self.arena_bytes(number)

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

        Call it until it returns nothing, and whenever the waker wakes or a read times out.
        """
        for batch in self.reader.ended():
            self._end(batch)
        for batch in [one for one in self._stuck if one.has_ended]:
            self._stuck.remove(batch)
            self._outbox.append(RoomFreed(slice_id=batch.owner.number))
        self._give_up_waiting()
        self._start()
        self._show()
        events, self._outbox = self._outbox, []
        return events

    def check_integrity(self) -> None:
        """Raises `AssertionError` where slices, reads and arena disagree."""
        spans = [spans for spans, _ in self._resident.values()]
        spans += [read.spans for read in self._waiting.values()]
        self.reader.check_integrity(sum(span.size_bytes for each in spans for span in each))
        assert self._loading_bytes == sum(map(self.arena_bytes, self._loading))
        working = [
            *self._waiting.values(),
            *(one.owner for one in self.reader.batches if not one.is_given_up),
        ]
        assert len(working) == len(self._loading), "a read is lost, or done twice"
        assert all(self._loading[read.number] is read for read in working)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Ends all reads and frees the memory; see `Reader.close`."""
        self._resident.clear()
        return self.reader.close(timeout_s)

    # ---- reads

    def _start(self) -> None:
        """Gives reads to the kernel: those that queries wait for, then those ahead."""
        if not self._waiting:
            return
        begun = [batch.owner for batch in self.reader.in_kernel]
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
            self._submit(read)

    def _submit(self, read: SliceRead) -> None:
        extent, page_bytes = read.extent, self._layout.page_bytes
        most_bytes = max(1, READ_BYTES_MAX // page_bytes) * page_bytes
        pieces = cut_spans(read.spans, extent.size_bytes, most_bytes)
        sizes = np.array([piece.size_bytes for piece in pieces], np.int64)
        self.reader.submit(
            read,
            np.full(len(pieces), extent.segment, np.int64),
            extent.offset_bytes + np.cumsum(sizes) - sizes,
            sizes,
            read.spans,
            np.array([piece.offset_bytes for piece in pieces], np.int64),
        )

    def _end(self, batch: PageBatch[SliceRead]) -> None:
        """A batch has ended, or is given up."""
        read = batch.owner
        self._metrics.bytes_read.labels(purpose=read.purpose).inc(batch.bytes_read)
        if batch.is_given_up:
            self._stuck.append(batch)
        else:
            self._last_end_us = self._clock.now_us()
        if batch.errors:
            self._fail(read, batch.errors[min(batch.errors)], is_stuck=batch.is_given_up)
            return
        self._leave(read)
        batch.spans = ()  # they are kept
        self._resident[read.number] = read.spans, self._pages(read)
        self._outbox.append(ReadEnded(slice_id=read.number))

    def _pages(self, read: SliceRead) -> ClusterPages:
        size_bytes, extent = read.extent.size_bytes, read.extent
        views = self._arena.views(cut_spans(read.spans, size_bytes, size_bytes))
        pieces = tuple(
            np.frombuffer(view.toreadonly(), np.uint8).reshape(-1, self._layout.page_bytes)
            for view in views
        )
        return ClusterPages(
            extent.cluster, self._layout, extent.row_count, pieces, extent.first_page
        )

    def _give_up_waiting(self) -> None:
        """Where the disk has ended nothing for so long, what waits for it will not come either."""
        before_us = self._clock.now_us() - self.reader.timeout_us
        if self._waiting and self._last_end_us < before_us:
            for read in [one for one in self._waiting.values() if one.started_us < before_us]:
                del self._waiting[read.number]
                self._arena.free(read.spans)
                self._fail(read, timed_out(self.reader.timeout_us), is_stuck=False)

    def _fail(self, read: SliceRead, error: ReadError, *, is_stuck: bool) -> None:
        self._leave(read)
        extent = read.extent
        error = _of_cluster(error, extent, self.reader.files.path(extent.segment))
        is_damaged = isinstance(error, CorruptionError)
        self._metrics.clusters_damaged.inc(is_damaged)
        event = "cluster damaged" if is_damaged else "cluster not read"
        _log.error(event, cluster=extent.cluster, error=str(error))
        self._outbox.append(ReadFailed(slice_id=read.number, error=error, is_stuck=is_stuck))

    def _leave(self, read: SliceRead) -> None:
        """A read is over, for the caller."""
        del self._loading[read.number]
        self._loading_bytes -= self.arena_bytes(read.number)

    def _show(self) -> None:
        stuck_bytes = self.reader.stuck_bytes
        shown = self._metrics.resident_bytes
        shown.labels(kind="resident").set(self.used_bytes - self._loading_bytes - stuck_bytes)
        shown.labels(kind="in_flight").set(self._loading_bytes)
        shown.labels(kind="stuck").set(stuck_bytes)


def _of_cluster(error: ReadError, extent: ClusterExtent, path: str) -> ReadError:
    """Returns the error with the cluster and its place in the segment `path` in its message."""
    where = f"cluster {extent.cluster} at byte {extent.offset_bytes} of {path}"
    message = f"{where} could not be read: {error}"
    if isinstance(error, CorruptionError):
        message += (
            ". The cluster is skipped, never scored; `carpool index verify` lists all that is "
            "damaged"
        )
        return CorruptionError(message, path=error.path, offset_bytes=error.offset_bytes)
    return RetryableError(message)
