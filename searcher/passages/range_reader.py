"""Reads ranges of bytes of a file: each page once, in batches, into a few buffers of one size.

A range may be larger than a buffer. A read that fails with a passing error is tried again, page by
page. A read that hangs is given up; its buffer stays out of use until the kernel returns it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.plan.range_pieces import PAGE_BYTES, RangePieces, cut_ranges, first_of_reads
from searcher.store.buffers import ReadBuffers
from searcher.store.page_reads import PageBatch, PageReads, ReadError
from searcher.store.reads_in_flight import NO_MEMORY, ReadLimits, ReadsInFlight
from searcher.store.waker import Waker

Int64 = npt.NDArray[np.int64]


class _Ranges:
    """The ranges of a call: what was read of them, and errors."""

    def __init__(self, file: int, starts: Int64, sizes: Int64) -> None:
        self.file = file
        self.starts = starts
        self.pieces: RangePieces = cut_ranges(starts, sizes)
        self.content = [bytearray(size) for size in sizes.tolist()]
        self.errors: dict[int, ReadError] = {}

    def pieces_of(self, pages: Int64) -> Int64:
        """Returns the positions of the pieces in `pages`, which rise."""
        first, last = np.searchsorted(self.pieces.pages, (pages[0], pages[-1] + 1))
        found = self.pieces.pages[first:last]
        positions: Int64 = first + np.flatnonzero(pages[np.searchsorted(pages, found)] == found)
        return positions

    def copy(self, buffer: memoryview, in_buffer: Int64, at: Int64) -> None:
        """Copies pieces from a buffer: (n,) their pages in it, (n,) their positions."""
        begins, owners = self.pieces.begins[at], self.pieces.ranges[at]
        for source, target, size, owner in zip(
            (in_buffer * PAGE_BYTES + begins % PAGE_BYTES).tolist(),
            (begins - self.starts[owners]).tolist(),
            (self.pieces.ends[at] - begins).tolist(),
            owners.tolist(),
            strict=True,
        ):
            self.content[owner][target : target + size] = buffer[source : source + size]

    def fail(self, pages: Int64, error: ReadError) -> None:
        """Fails all ranges that have bytes in `pages`."""
        for position in self.pieces.ranges[self.pieces_of(pages)].tolist():
            self.errors.setdefault(position, error)

    def results(self) -> list[bytearray | ReadError]:
        """Returns the content or the error of each range."""
        return [self.errors.get(position, read) for position, read in enumerate(self.content)]


@dataclass(frozen=True, slots=True, eq=False)
class _Pages:
    """Pages that are read together: (n,) int64, rising. `first_of`: where each read begins."""

    pages: Int64
    first_of: Int64
    slot: int
    attempt: int

    @property
    def read_of(self) -> Int64:
        """The position of the read of each page, (n,)."""
        counts = np.diff(np.append(self.first_of, len(self.pages)))
        return np.repeat(np.arange(len(counts)), counts)


class RangeReader:
    """Reads ranges for one thread. `reads`, `waker` and `buffers` belong to the caller."""

    def __init__(
        self,
        *,
        reads: PageReads,
        waker: Waker,
        buffers: ReadBuffers,
        limits: ReadLimits,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`waker`: wakes when a batch of `reads` has ended."""
        self._waker = waker
        self._buffers = buffers
        self._in_flight = ReadsInFlight[_Pages](reads, limits, clock, self._free)
        self._bytes_read = metrics.searcher.bytes_read.labels(purpose="passages")
        self._clock = clock
        self._wanted: deque[tuple[Int64, int]] = deque()  # pages, attempt

    def read(self, file: int, starts: Int64, sizes: Int64) -> list[bytearray | ReadError]:
        """Returns the content of each range of a file, or why it could not be read.

        `starts`, `sizes`: (n,) int64, bytes; ranges may overlap. Blocks until the reads have ended,
        or are given up after the time limit.
        """
        ranges = _Ranges(file, starts, sizes)
        self._end(ranges)  # buffers may have come back
        if len(ranges.pieces.pages):
            self._wanted.append((np.unique(ranges.pieces.pages), 1))
        while self._wanted or len(self._in_flight):
            self._start(ranges)
            if not len(self._in_flight):  # every buffer is with a read that hangs
                for pages, _ in self._wanted:
                    ranges.fail(pages, RetryableError(NO_MEMORY))
                self._wanted.clear()
                break
            self._waker.wait(self._wait_s())
            self._end(ranges)
        return ranges.results()

    def check_integrity(self) -> None:
        """Raises `AssertionError` where buffers were lost; not during `read`."""
        assert not self._wanted and not len(self._in_flight)
        stuck = self._in_flight.stuck()
        assert len({pages.slot for pages in stuck}) == len(stuck) == self._buffers.taken

    def _wait_s(self) -> float:
        times_out_at_us, now_us = self._in_flight.times_out_at_us, self._clock.now_us()
        return max(0.001, ((times_out_at_us or now_us) - now_us) / 1_000_000)

    # ---- starting

    def _start(self, ranges: _Ranges) -> None:
        while self._wanted and self._buffers.free:
            pages, attempt = self._wanted.popleft()
            taken, rest = np.split(pages, [self._buffers.slot_pages])
            if len(rest):
                self._wanted.appendleft((rest, attempt))
            # A second try reads each page alone, so that a bad one fails only what is in it.
            first_of = first_of_reads(taken) if attempt == 1 else np.arange(len(taken))
            slot, buffer = self._buffers.take(len(taken))
            batch = PageBatch(
                files=np.full(len(first_of), ranges.file),
                offsets_bytes=taken[first_of] * PAGE_BYTES,
                sizes_bytes=np.diff(np.append(first_of, len(taken))) * PAGE_BYTES,
                buffer=buffer,
            )
            self._in_flight.submit(batch, _Pages(taken, first_of, slot, attempt))

    # ---- ending

    def _end(self, ranges: _Ranges) -> None:
        for batch, pages in self._in_flight.ended():
            self._take(batch, pages, ranges)

    def _free(self, pages: _Pages) -> None:
        self._buffers.give_back(pages.slot)

    def _take(self, batch: PageBatch, pages: _Pages, ranges: _Ranges) -> None:
        """Copies what was read to its ranges; what failed is read again, or fails its ranges."""
        self._bytes_read.inc(int(batch.sizes_bytes[batch.ended].sum()))
        pieces, at = ranges.pieces, ranges.pieces_of(pages.pages)
        in_buffer = np.searchsorted(pages.pages, pieces.pages[at])  # the page of each piece
        read_of, until = pages.read_of, (pages.pages + 1) * PAGE_BYTES
        for read, error in batch.errors.items():
            # The end of the file may be within a page, and what comes before it was read.
            cut_at = error.offset_bytes if isinstance(error, CorruptionError) else None
            of_read = read_of == read
            until[of_read] = np.minimum(until[of_read], cut_at or 0)
        was_read = pieces.ends[at] <= until[in_buffer]
        ranges.copy(batch.buffer, in_buffer[was_read], at[was_read])
        again = set()
        for piece, read in zip(
            at[~was_read].tolist(), read_of[in_buffer[~was_read]].tolist(), strict=True
        ):
            error = batch.errors[read]
            if self._in_flight.may_retry(batch, error, pages.attempt):
                again.add(int(pieces.pages[piece]))
            else:
                ranges.errors.setdefault(int(pieces.ranges[piece]), error)
        if again:
            self._wanted.append((np.array(sorted(again)), pages.attempt + 1))
