"""The reader: reads files into memory, for owners, and yields what was read when it is verified.

What a reader of clusters, rows, codes or passages does not have to know of a disk that hangs, or
that gives wrong bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic

import numpy as np

from carpool.arrays import Int64
from carpool.clock import Clock
from carpool.disk.checked_file import PAGE_BYTES, CheckedFile
from carpool.errors import RetryableError
from searcher.settings import SearcherSettings
from searcher.store.arena import Arena, Spans
from searcher.store.files import SegmentFiles
from searcher.store.kernel_page_reads import open_page_reads
from searcher.store.page_reads import Owner, PageBatch, PageReads
from searcher.store.waker import Waker

CLOSE_TIMEOUT_S = 0.5
NO_MEMORY = (
    "there was no memory to read into: reads that never returned take it up. Check the disk; the "
    "queries that came meanwhile can be asked again"
)

OpenReads = Callable[[SegmentFiles, Waker], PageReads]


class Reader(Generic[Owner]):
    """Reads files into `memory`; the reads for one owner are a batch. For one thread.

    *Invariant:* the memory of a batch is reserved before its first read starts. It is freed after
    the batch was yielded and the kernel has ended its last read, even if that hangs.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        memory: Arena,
        settings: SearcherSettings,
        waker: Waker,
        clock: Clock,
        *,
        sums: Sequence[CheckedFile] = (),
        verifies_aside: bool = False,
        open_reads: OpenReads | None = None,
    ) -> None:
        """Opens the files. `waker` wakes a thread when `ended` has something to yield.

        `sums` is by file; without it nothing is verified. `verifies_aside`: on a thread of its own.
        `open_reads` is for tests and benchmarks. Raises `ConfigError` as `SegmentFiles`.
        """
        self.memory, self.waker = memory, waker
        self.files = SegmentFiles(paths, settings.direct_io)
        self._reads = (
            open_reads(self.files, waker)
            if open_reads is not None
            else open_page_reads(self.files, waker, clock)
        )
        self._clock = clock
        self.timeout_us = settings.read_timeout_ms * 1_000
        self._sums = sums
        self._aside = ThreadPoolExecutor(1, "verify") if verifies_aside else None
        self._verified: deque[tuple[PageBatch[Owner], Future[None]]] = deque()
        self.batches: dict[PageBatch[Owner], None] = {}  # whose memory is not free

    @property
    def in_kernel(self) -> list[PageBatch[Owner]]:
        """The batches that have not ended and are not given up, oldest first."""
        return [one for one in self.batches if not (one.has_ended or one.is_given_up)]

    @property
    def stuck_bytes(self) -> int:
        """Bytes of memory of the batches that were given up, and that the kernel still has."""
        return sum(
            one.memory_bytes for one in self.batches if one.is_given_up and not one.has_ended
        )

    @property
    def no_memory(self) -> RetryableError | None:
        """The error of reads for which there will be no memory: reads that hang have all."""
        is_stuck = not self.memory.free_bytes and self.stuck_bytes == self.memory.size_bytes
        return RetryableError(NO_MEMORY) if is_stuck else None

    @property
    def times_out_at_us(self) -> int | None:
        """When the oldest batch is given up; None while there is none."""
        moments = [batch.submitted_us for batch in self.in_kernel]
        return min(moments) + self.timeout_us if moments else None

    def submit(
        self,
        owner: Owner,
        files: Int64,
        offsets_bytes: Int64,
        sizes_bytes: Int64,
        spans: Spans = (),
        starts: Int64 | None = None,
    ) -> PageBatch[Owner]:
        """Starts reads of whole pages, (n,) int64 each, n >= 1. Does not block.

        Into `spans` of the memory, at `starts`; by default one behind the other in a free block,
        which must be large enough.
        """
        if starts is None:
            ends = np.cumsum(sizes_bytes)
            spans = self.memory.allocate(int(ends[-1])) or ()
            assert len(spans) == 1, "no block of memory is free, or one is too small"
            starts = ends - sizes_bytes + spans[0].offset_bytes
        batch = PageBatch(
            owner=owner,
            files=files,
            offsets_bytes=offsets_bytes,
            sizes_bytes=sizes_bytes,
            buffer=self.memory.view,
            starts=starts,
            spans=spans,
        )
        self.batches[batch] = None
        self._reads.submit(batch)
        return batch

    def ended(self) -> Iterator[PageBatch[Owner]]:
        """Yields each batch once: when it has ended, or when it is given up. Does not block.

        The good bytes of each read are verified, and the caller's until the next batch is asked
        for; longer if it counts itself among the `holders`, until `let_go`, or takes the `spans`.
        """
        for batch in self._reads.poll():
            batch.has_ended = True
            if batch.is_given_up:
                self.let_go(batch)
            elif self._aside is None:
                self._verify(batch)
                yield batch
                self.let_go(batch)
            else:
                check = self._aside.submit(self._verify, batch)
                check.add_done_callback(lambda _: self.waker.wake())
                self._verified.append((batch, check))
        while self._verified and self._verified[0][1].done():
            batch, check = self._verified.popleft()
            check.result()
            yield batch
            self.let_go(batch)
        before_us = self._clock.now_us() - self.timeout_us
        for batch in self.in_kernel:
            if batch.submitted_us < before_us and batch.give_up(timed_out(self.timeout_us)):
                self._verify(batch)
                yield batch

    def let_go(self, batch: PageBatch[Owner]) -> None:
        """One of the holders of the memory of a batch does not use it any more."""
        batch.holders -= 1
        if not batch.holders:
            del self.batches[batch]
            self.memory.free(batch.spans)

    def check_integrity(self, kept_bytes: int = 0) -> None:
        """Raises `AssertionError` where memory was lost; `kept_bytes`: what callers took."""
        self.memory.check_integrity()
        taken_bytes = sum(batch.memory_bytes for batch in self.batches)
        assert taken_bytes + kept_bytes + self.memory.free_bytes == self.memory.size_bytes

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Ends the reads, closes the files and frees the memory; blocks up to `timeout_s`.

        Returns whether the kernel has ended all reads; if not, files and memory stay. Call nothing
        but `close` from now on.
        """
        if self._aside is not None:
            self._aside.shutdown(cancel_futures=True)
        has_ended = self._reads.close(timeout_s)
        if has_ended:
            self.files.close()
            self.batches.clear()
            self._verified.clear()
            self.memory.close()
        return has_ended

    def _verify(self, batch: PageBatch[Owner]) -> None:
        """Says how much of what a batch has read is good: up to the first page that is wrong."""
        batch.good_bytes = np.maximum(batch.read_bytes, 0)
        if not self._sums:
            return
        batch.good_bytes -= batch.good_bytes % PAGE_BYTES
        columns = (batch.files, batch.offsets_bytes, batch.starts, batch.good_bytes)
        reads = zip(*(column.tolist() for column in columns), strict=True)
        for position, (file, offset_bytes, start, good_bytes) in enumerate(reads):
            first, sums = offset_bytes // PAGE_BYTES, self._sums[file]
            wrong = sums.first_damaged(batch.buffer[start : start + good_bytes], first)
            if wrong is not None:
                batch.good_bytes[position] = (wrong - first) * PAGE_BYTES
                batch.errors[position] = sums.damaged(wrong)


def timed_out(timeout_us: int) -> RetryableError:
    """Returns the error of a read that is given up."""
    return RetryableError(
        f"a read did not come within {timeout_us / 1_000_000:g} s: the disk hangs, or is too slow. "
        "Its memory stays out of use until the kernel returns it. Check the disk; if it is only "
        "slow, raise [searcher] read_timeout_ms"
    )


def close_all(readers: Sequence[Reader[Any]], waker: Waker) -> None:
    """Closes readers, and their waker if no thread can wake it any more."""
    have_ended = [reader.close() for reader in readers]
    if all(have_ended):
        waker.close()
