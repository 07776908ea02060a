"""Many small reads at once: the interface, and threads that read.

A batch is submitted as a whole and reported as a whole. Its reads go to the kernel together, by one
system call where there is io_uring (`ring_page_reads.py`).
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from carpool.clock import Clock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.waker import Waker

Int64 = npt.NDArray[np.int64]
ReadError = CorruptionError | RetryableError

BATCH_READS_MAX = 1 << 16


@dataclass(kw_only=True, slots=True, eq=False)
class PageBatch:
    """Reads of whole pages of 4 KiB into one buffer, one behind the other.

    A read that reaches the end of its file fails as `cut_short` says; what the file has is in the
    buffer.

    `files`, `offsets_bytes`, `sizes_bytes`: (n,) int64 each. `buffer`: writable, aligned to 4 KiB,
    as large as all reads together. `errors`: of reads that failed, by position. `unended`: reads
    that the kernel has not ended; the buffer is in use until it is 0.
    """

    files: Int64
    offsets_bytes: Int64
    sizes_bytes: Int64
    buffer: memoryview
    submitted_us: int = 0
    unended: int = 0
    is_given_up: bool = False
    errors: dict[int, ReadError] = field(default_factory=dict)
    ended: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def __post_init__(self) -> None:
        """Marks no read as ended."""
        self.unended = len(self.files)
        self.ended = np.zeros(len(self.files), bool)
        assert len(self.files) <= BATCH_READS_MAX, "too many reads for a batch"


class PageFiles(Protocol):
    """The files that are read, by number."""

    def descriptor(self, file: int) -> int:
        """Returns the descriptor of a file."""
        ...

    def path(self, file: int) -> str:
        """Returns the name of a file, for errors."""
        ...


class PageReads(Protocol):
    """Reads batches. For one thread."""

    def submit(self, batch: PageBatch) -> None:
        """Starts all reads of a batch. Does not block."""
        ...

    def poll(self) -> list[PageBatch]:
        """Returns the batches whose last read has ended since the last call. Does not block."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Waits for reads in progress; returns whether all have ended. Submit nothing after it."""
        ...


def failed(files: PageFiles, batch: PageBatch, position: int, error: OSError) -> RetryableError:
    """Returns the error of a read that the kernel failed."""
    return RetryableError(
        f"reading {files.path(int(batch.files[position]))} at byte "
        f"{int(batch.offsets_bytes[position])} failed: {error.strerror}; if this continues, check "
        "the disk"
    )


def cut_short(files: PageFiles, batch: PageBatch, position: int, at_bytes: int) -> CorruptionError:
    """Returns the error of a read that reached the end of the file."""
    path = files.path(int(batch.files[position]))
    offset_bytes = int(batch.offsets_bytes[position]) + at_bytes
    return CorruptionError(
        f"{path} ends at byte {offset_bytes}, within a read: the file was cut short. Run `carpool "
        "index verify`, then restore or rebuild the index",
        path=path,
        offset_bytes=offset_bytes,
    )


def is_at_end(files: PageFiles, batch: PageBatch, position: int, done_bytes: int) -> bool:
    """Returns whether a read that got `done_bytes` has reached the end of the file.

    The end may be within a page; a direct read cannot go on from there. Raises `RetryableError`
    where the file is closed.
    """
    end_bytes = int(batch.offsets_bytes[position]) + done_bytes
    return os.fstat(files.descriptor(int(batch.files[position]))).st_size <= end_bytes


class ThreadPageReads:
    """Implements `PageReads` with threads, for machines without io_uring."""

    def __init__(self, files: PageFiles, waker: Waker, clock: Clock, threads: int) -> None:
        self._files = files
        self._waker = waker
        self._clock = clock
        self._work: queue.SimpleQueue[tuple[PageBatch, int, int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: deque[PageBatch] = deque()
        self._threads = [
            threading.Thread(target=self._run, name=f"page-reads-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, batch: PageBatch) -> None:
        """Queues the reads."""
        batch.submitted_us = self._clock.now_us()
        starts = np.cumsum(batch.sizes_bytes) - batch.sizes_bytes
        for position, start in enumerate(starts.tolist()):
            self._work.put((batch, position, start))

    def poll(self) -> list[PageBatch]:
        """Returns the batches that have ended."""
        with self._lock:
            ended = [*self._ended]
            self._ended.clear()
        return ended

    def close(self, timeout_s: float) -> bool:
        """Ends the threads."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            batch, position, start = work
            error = self._read(batch, position, start)
            with self._lock:
                if error is not None:
                    batch.errors.setdefault(position, error)
                batch.ended[position] = True
                batch.unended -= 1
                if not batch.unended:
                    self._ended.append(batch)
                    self._waker.wake()

    def _read(self, batch: PageBatch, position: int, start: int) -> ReadError | None:
        size_bytes = int(batch.sizes_bytes[position])
        view = batch.buffer[start : start + size_bytes]
        offset_bytes, done_bytes = int(batch.offsets_bytes[position]), 0
        try:
            descriptor = self._files.descriptor(int(batch.files[position]))
            while done_bytes < size_bytes:
                count = os.preadv(descriptor, [view[done_bytes:]], offset_bytes + done_bytes)
                done_bytes += count
                if not count or (
                    done_bytes < size_bytes and is_at_end(self._files, batch, position, done_bytes)
                ):
                    return cut_short(self._files, batch, position, done_bytes)
        except OSError as error:
            return failed(self._files, batch, position, error)
        except RetryableError as error:
            return error
        return None
