"""Reads ranges of bytes of a file, round by round: one batch of reads into one buffer.

A range may be larger than a buffer. A read that hangs is given up; its buffer stays out of use
until the kernel returns it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from carpool.clock import Clock
from carpool.errors import ReadError, RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.plan.passage_reads import (
    PAGE_BYTES,
    Piece,
    PlannedRead,
    cut_ranges,
    take_reads,
)
from searcher.store.buffers import ReadBuffers
from searcher.store.page_reads import PageBatch, PageReads
from searcher.store.reads_in_flight import NO_MEMORY, ReadsInFlight
from searcher.store.waker import Waker


class _Ranges:
    """The ranges of a call: what is still wanted of them, what was read, and errors."""

    def __init__(self, starts: Sequence[int], sizes: Sequence[int], pages_max: int) -> None:
        self.wanted = deque(cut_ranges(starts, sizes, pages_max))
        self.content = [bytearray(size) for size in sizes]
        self.errors: dict[int, ReadError] = {}
        self._starts = starts

    def copy(self, piece: Piece, buffer: memoryview) -> None:
        """Copies a piece from where it begins in a buffer."""
        at, size = piece.begin - self._starts[piece.of], piece.end - piece.begin
        self.content[piece.of][at : at + size] = buffer[:size]

    def fail(self, error: ReadError) -> None:
        """Fails all ranges of which something is wanted."""
        self.errors |= {piece.of: error for piece in self.wanted}


class RangeReader:
    """Reads ranges for one thread. `reads`, `waker` and `buffers` belong to the caller."""

    def __init__(
        self,
        *,
        reads: PageReads,
        waker: Waker,
        buffers: ReadBuffers,
        timeout_us: int,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`waker`: wakes when a batch of `reads` has ended."""
        self._waker = waker
        self._buffers = buffers
        self._in_flight = ReadsInFlight[int](reads, timeout_us, clock, buffers.give_back)
        self._bytes_read = metrics.searcher.bytes_read.labels(purpose="passages")
        self._clock = clock
        self._hang: ReadError | None = None  # of the last round, if no read of it ended

    def ask_again(self) -> None:
        """A disk that hung may work again."""
        self._hang = None

    def read(
        self, file: int, starts: Sequence[int], sizes: Sequence[int]
    ) -> list[bytearray | ReadError]:
        """Returns the content of each range of a file, or why it could not be read.

        `starts`, `sizes`: in bytes; ranges may overlap. Blocks until the reads have ended, or are
        given up after the time limit. After a round in which no read ended nothing is read, until
        `ask_again`: all ranges fail.
        """
        ranges = _Ranges(starts, sizes, self._buffers.slot_pages)
        for _ in self._in_flight.ended():  # buffers of reads that hung may have come back
            raise AssertionError("a round had not ended")
        while ranges.wanted:
            if self._hang is not None or not self._buffers.free:  # all with reads that hang
                ranges.fail(self._hang or RetryableError(NO_MEMORY))
                break
            reads = take_reads(ranges.wanted, self._buffers.slot_pages)
            self._submit(file, reads)
            while len(self._in_flight):
                self._waker.wait(self._wait_s())
                for batch, _ in self._in_flight.ended():
                    self._take(batch, reads, ranges)
                    self._hang = batch.errors[0] if batch.read_bytes.max() < 0 else None
        return [ranges.errors.get(of, content) for of, content in enumerate(ranges.content)]

    def check_integrity(self) -> None:
        """Raises `AssertionError` where buffers were lost; not during `read`."""
        stuck = self._in_flight.stuck()
        assert not len(self._in_flight) and len(set(stuck)) == len(stuck) == self._buffers.taken

    def _submit(self, file: int, reads: Sequence[PlannedRead]) -> None:
        firsts = np.array([read.first for read in reads], np.int64)
        counts = np.array([read.end for read in reads], np.int64) - firsts
        slot, buffer = self._buffers.take(int(counts.sum()))
        sizes = counts * PAGE_BYTES
        batch = PageBatch(
            owner=None,
            files=np.full(len(reads), file, np.int64),
            offsets_bytes=firsts * PAGE_BYTES,
            sizes_bytes=sizes,
            starts=np.cumsum(sizes) - sizes,
            buffer=buffer,
        )
        self._in_flight.submit(batch, slot)

    def _take(self, batch: PageBatch[Any], reads: Sequence[PlannedRead], ranges: _Ranges) -> None:
        """Copies what was read to its ranges.

        The pieces of a read that failed are read one by one; one that was alone fails its range.
        """
        self._bytes_read.inc(int(np.maximum(batch.read_bytes, 0).sum()))
        columns = batch.starts.tolist(), batch.read_bytes.tolist()
        for number, (read, at, good_bytes) in enumerate(zip(reads, *columns, strict=True)):
            first = read.first * PAGE_BYTES
            for piece in read.pieces:
                if piece.end <= first + good_bytes:
                    ranges.copy(piece, batch.buffer[at + piece.begin - first :])
                    continue
                error = batch.errors[number]
                is_passing = isinstance(error, RetryableError) and not batch.is_given_up
                if is_passing and len(read.pieces) > 1:
                    ranges.wanted.append(piece._replace(is_alone=True))
                else:
                    ranges.errors.setdefault(piece.of, error)

    def _wait_s(self) -> float:
        times_out_at_us, now_us = self._in_flight.times_out_at_us, self._clock.now_us()
        return max(0.001, ((times_out_at_us or now_us) - now_us) / 1_000_000)
