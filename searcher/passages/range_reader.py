"""Reads ranges of bytes of a file, round by round: one batch of reads into one block of memory.

A range may be larger than a block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from carpool.clock import Clock
from carpool.errors import ReadError, RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.plan.passage_reads import PAGE_BYTES, Piece, PlannedRead, cut_ranges, take_reads
from searcher.store.page_reads import PageBatch
from searcher.store.reader import Reader

Reads = Sequence[PlannedRead]


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
    """Reads ranges for one thread. The caller closes `reader`."""

    def __init__(self, reader: Reader[Reads], metrics: Metrics, clock: Clock) -> None:
        self.reader = reader
        self._pages_max = reader.memory.block_bytes // PAGE_BYTES
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

        `starts` and `sizes` are in bytes; ranges may overlap. Blocks until the reads have ended, or
        are given up after the time limit. After a round in which no read ended nothing is read,
        until `ask_again`: all ranges fail.
        """
        ranges = _Ranges(starts, sizes, self._pages_max)
        for _ in self.reader.ended():  # memory of reads that hung may have come back
            raise AssertionError("a round had not ended")
        while ranges.wanted:
            if (error := self._hang or self.reader.no_memory) is not None:
                ranges.fail(error)
                break
            self._submit(file, take_reads(ranges.wanted, self._pages_max))
            while self.reader.in_kernel:
                self.reader.waker.wait(self._wait_s())
                for batch in self.reader.ended():
                    self._take(batch, ranges)
        return [ranges.errors.get(of, content) for of, content in enumerate(ranges.content)]

    def _submit(self, file: int, reads: Reads) -> None:
        firsts = np.array([read.first for read in reads], np.int64)
        counts = np.array([read.end for read in reads], np.int64) - firsts
        files = np.full(len(reads), file, np.int64)
        self.reader.submit(reads, files, firsts * PAGE_BYTES, counts * PAGE_BYTES)

    def _take(self, batch: PageBatch[Reads], ranges: _Ranges) -> None:
        """Copies what was read to its ranges.

        The pieces of a read that failed are read one by one; one that was alone fails its range.
        """
        self._bytes_read.inc(batch.bytes_read)
        self._hang = batch.errors[0] if batch.read_bytes.max() < 0 else None
        columns = batch.starts.tolist(), batch.good_bytes.tolist()
        for number, (read, start, good_bytes) in enumerate(zip(batch.owner, *columns, strict=True)):
            first = read.first * PAGE_BYTES
            for piece in read.pieces:
                if piece.end <= first + good_bytes:
                    ranges.copy(piece, batch.buffer[start + piece.begin - first :])
                    continue
                error = batch.errors[number]
                is_passing = isinstance(error, RetryableError) and not batch.is_given_up
                if is_passing and len(read.pieces) > 1:
                    ranges.wanted.append(piece._replace(is_alone=True))
                else:
                    ranges.errors.setdefault(piece.of, error)

    def _wait_s(self) -> float:
        times_out_at_us, now_us = self.reader.times_out_at_us, self._clock.now_us()
        return max(0.001, ((times_out_at_us or now_us) - now_us) / 1_000_000)
