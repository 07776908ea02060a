"""Many reads at once: the interface, and threads that read.

A batch is submitted as a whole and reported as a whole.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import structlog

from carpool.arrays import Int64
from carpool.clock import Clock
from carpool.errors import CorruptionError, ReadError, RetryableError
from searcher.store.arena import Spans
from searcher.store.files import SegmentFiles
from searcher.store.waker import Waker

_log = structlog.get_logger(__name__)

READ_THREADS = 16

Owner = TypeVar("Owner")


@dataclass(kw_only=True, slots=True, eq=False)
class PageBatch(Generic[Owner]):
    """Reads of whole pages of 4 KiB into a buffer, for `owner`: any value.

    `files`, `offsets_bytes`, `sizes_bytes`, `starts`: (n,) int64 each; `starts`: where in `buffer`,
    writable and aligned to 4 KiB, each read goes. `read_bytes`: (n,) int64, how many bytes from
    there on each read has filled, -1 before it ends; `errors`: why there are no more, by position.
    `good_bytes`: as many of these are verified. `unended`: reads that the kernel has not ended; the
    buffer is in use until it is 0. `holders`: who uses the memory, `spans`.
    """

    owner: Owner
    files: Int64
    offsets_bytes: Int64
    sizes_bytes: Int64
    starts: Int64
    buffer: memoryview
    spans: Spans = ()
    submitted_us: int = 0
    unended: int = 0
    is_given_up: bool = False
    has_ended: bool = False
    holders: int = 1
    read_bytes: Int64 = field(init=False)
    good_bytes: Int64 = field(init=False)
    errors: dict[int, ReadError] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Marks no read as ended."""
        self.unended = len(self.files)
        self.read_bytes = self.good_bytes = np.full(self.unended, -1)
        assert self.unended, "a batch without reads never ends"

    @property
    def memory_bytes(self) -> int:
        """The bytes of its memory."""
        return sum(span.size_bytes for span in self.spans)

    @property
    def bytes_read(self) -> int:
        """The bytes that its reads have filled."""
        return int(np.maximum(self.read_bytes, 0).sum())

    def end(self, position: int, read_bytes: int, error: ReadError | None = None) -> None:
        """Marks a read as ended."""
        if error is not None:
            self.errors[position] = error
        self.read_bytes[position] = read_bytes
        self.unended -= 1

    def give_up(self, error: ReadError) -> bool:
        """Fails the reads that have not ended. Returns False where all have."""
        unended = np.flatnonzero(self.read_bytes < 0).tolist()
        self.errors |= dict.fromkeys(unended, error)
        self.is_given_up = bool(unended)
        return self.is_given_up


class PageReads(Protocol):
    """Reads batches. For one thread."""

    def submit(self, batch: PageBatch[Any]) -> None:
        """Starts all reads of a batch. Does not block.

        A read that the kernel fails is done once more: a short trouble costs no hits.
        """
        ...

    def poll(self) -> list[PageBatch[Any]]:
        """Returns the batches whose last read has ended since the last call. Does not block."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Waits for reads in progress, and drops those that have not started.

        Returns whether all have ended: before, files and buffers must not be freed. Submit nothing
        after it. Closing twice is harmless.
        """
        ...


def failed(
    files: SegmentFiles, batch: PageBatch[Any], position: int, error: OSError
) -> RetryableError | None:
    """Returns the error of a read that the kernel failed.

    None the first time, unless it was given up: it is to be done again.
    """
    failure = RetryableError(
        f"reading {files.path(int(batch.files[position]))} at byte "
        f"{int(batch.offsets_bytes[position])} failed: {error.strerror}; if this continues, check "
        "the disk"
    )
    if position in batch.repeated or batch.is_given_up:
        return failure
    batch.repeated.add(position)
    _log.warning("read failed", error=str(failure), means="it is done once more")
    return None


def cut_short(path: str, batch: PageBatch[Any], position: int, at_bytes: int) -> CorruptionError:
    """Returns the error of a read that reached the end of the file `path` after `at_bytes`."""
    offset_bytes = int(batch.offsets_bytes[position]) + at_bytes
    return CorruptionError(
        f"{path} ends at byte {offset_bytes}, within a read: the file was cut short. Run `carpool "
        "index verify`, then restore or rebuild the index",
        path=path,
        offset_bytes=offset_bytes,
    )


class ThreadPageReads:
    """Implements `PageReads` with threads.

    A thread whose read was given up gets a substitute, which stays: at most `threads` of them.
    """

    def __init__(
        self, files: SegmentFiles, waker: Waker, clock: Clock, threads: int = READ_THREADS
    ) -> None:
        self._files = files
        self._waker = waker
        self._clock = clock
        self._work: queue.SimpleQueue[tuple[PageBatch[Any], int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy: dict[int, PageBatch[Any]] = {}  # by thread
        self._ended: deque[PageBatch[Any]] = deque()
        self._is_closing = False
        self._count = threads
        self._threads: list[threading.Thread] = []
        self._add_threads(threads)

    def submit(self, batch: PageBatch[Any]) -> None:
        """Queues the reads."""
        batch.submitted_us = self._clock.now_us()
        for position in range(len(batch.files)):
            self._work.put((batch, position))

    def poll(self) -> list[PageBatch[Any]]:
        """Returns the batches that have ended."""
        with self._lock:
            ended = [*self._ended]
            self._ended.clear()
            stuck = sum(batch.is_given_up for batch in self._busy.values())
        self._add_threads(self._count + min(stuck, self._count))
        return ended

    def close(self, timeout_s: float) -> bool:
        """Ends the threads."""
        self._is_closing = True
        for _ in self._threads:
            self._work.put(None)
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _add_threads(self, count: int) -> None:
        """Starts threads until there are `count`."""
        for number in range(len(self._threads), count):
            thread = threading.Thread(target=self._run, name=f"page-reads-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        me = threading.get_ident()
        while (work := self._work.get()) is not None:
            batch, position = work
            if self._is_closing:
                continue
            with self._lock:
                self._busy[me] = batch
            read_bytes, error = self._read(batch, position)
            with self._lock:
                del self._busy[me]
                batch.end(position, read_bytes, error)
                has_ended = not batch.unended
                if has_ended:
                    self._ended.append(batch)
            if has_ended:
                self._waker.wake()
            del work, batch  # a thread that waits must keep no buffer

    def _read(self, batch: PageBatch[Any], position: int) -> tuple[int, ReadError | None]:
        """Returns how many bytes were read, and why not all."""
        size_bytes, start = int(batch.sizes_bytes[position]), int(batch.starts[position])
        view = batch.buffer[start : start + size_bytes]
        file, offset_bytes = int(batch.files[position]), int(batch.offsets_bytes[position])
        try:
            if batch.is_given_up:
                raise RetryableError("given up before it began")
            done_bytes = self._files.fill(file, view, offset_bytes)
        except OSError as error:
            failure = failed(self._files, batch, position, error)
            return (0, failure) if failure is not None else self._read(batch, position)
        except RetryableError as error:
            return 0, error.with_traceback(None)  # a traceback would keep the buffer
        if done_bytes < size_bytes:
            return done_bytes, cut_short(self._files.path(file), batch, position, done_bytes)
        return done_bytes, None
