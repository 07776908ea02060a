"""The engine of io_uring: one thread submits all reads and collects their ends.

It takes two system calls a batch. The thread sleeps in a read of an eventfd, to which the kernel
and every change of the queue add.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque

from carpool.clock import Clock
from searcher.store.engine import BlockError, BlockRead, OnDone
from searcher.store.files import SegmentFiles, remaining
from searcher.store.io_uring import Ring
from searcher.store.queued import QueuedEngine

TRY_AGAIN = (errno.EAGAIN, errno.EINTR)
KERNEL_BUSY_PAUSE_S = 0.001

_Ended = tuple[int, BlockError | None, int]  # token, error, microseconds with the kernel


class _ReadInKernel:
    """A read, how much of it is done, and memory that the kernel uses until the read has ended."""

    __slots__ = ("done_bytes", "kept", "read")

    def __init__(self, read: BlockRead) -> None:
        self.read = read
        self.done_bytes = 0
        self.kept: object = None


class IoUringEngine(QueuedEngine):
    """Implements `BlockEngine`. Does not close `files`."""

    def __init__(
        self, files: SegmentFiles, *, depth: int, prefetch_depth: int, clock: Clock
    ) -> None:
        """Makes the ring. Raises `OSError` where the kernel has no io_uring or forbids it."""
        super().__init__(depth=depth, prefetch_depth=prefetch_depth, clock=clock)
        self._files = files
        self._in_kernel: dict[int, _ReadInKernel] = {}  # used by the thread of the ring only
        self._again: deque[_ReadInKernel] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            # Up to `depth` reads that were given up may have to be continued at the moment when
            # `depth` others start.
            self._ring = Ring(2 * depth, self._wake)
        except BaseException:
            os.close(self._wake)
            raise
        self._thread = threading.Thread(target=self._run, name="io-uring", daemon=True)

    def start(self, on_done: OnDone) -> None:
        """Starts the thread."""
        self._on_done = on_done
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Ends the thread once the kernel has ended all reads."""
        with self._changed:
            self._stop()
            self._wake_up(1)
            never_started = self._thread.ident is None
        if never_started:
            self._release()
        else:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _wake_up(self, count: int) -> None:
        if count and self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _release(self) -> None:
        with self._changed:
            if self._wake >= 0:
                self._ring.close()
                os.close(self._wake)
                self._wake = -1

    # ---- the thread of the ring

    def _run(self) -> None:
        while True:
            ended = self._reap()
            cancelled, refused = self._refill()
            ended += refused
            # The kernel is busy again before listeners run, which check the bytes.
            for token, error, latency_us in ended:
                self._report(token, error, latency_us)
            for token in cancelled:
                self._report_cancelled(token)
            if ended or cancelled:
                del ended
                continue  # more reads may have ended meanwhile
            with self._changed:
                if self._is_closing and not self._waiting.with_kernel and not self._cancelled:
                    break
            os.eventfd_read(self._wake)  # releases the GIL
        self._release()

    def _reap(self) -> list[_Ended]:
        """Returns the reads that have ended; a partial or interrupted read is to be continued."""
        ended = []
        tokens, results = self._ring.completed()
        for token, result in zip(tokens.tolist(), results.tolist(), strict=True):
            one = self._in_kernel.pop(token)
            is_over, error_or_none = self._judge(one, result)
            if is_over:
                ended.append((token, error_or_none, self._end(token)))
            else:
                self._again.append(one)
        return ended

    def _judge(self, one: _ReadInKernel, result: int) -> tuple[bool, BlockError | None]:
        """Returns whether a read is over, and its error if any."""
        read = one.read
        if result < 0:
            if -result in TRY_AGAIN:
                return False, None
            error = OSError(-result, os.strerror(-result))
            return True, self._files.failure(read, one.done_bytes, error)
        if result == 0:
            return True, self._files.cut_short(read, one.done_bytes)
        one.done_bytes += result
        if one.done_bytes < read.size_bytes:
            return False, None
        self._files.forget(read)
        return True, None

    def _refill(self) -> tuple[list[int], list[_Ended]]:
        """Submits reads; returns the cancelled ones, and those that could not be submitted."""
        batch = [*self._again]
        self._again.clear()
        with self._changed:
            cancelled = [*self._cancelled]
            self._cancelled.clear()
            now_us = self._clock.now_us()
            while (read := self._waiting.take(now_us)) is not None:
                batch.append(_ReadInKernel(read))
        refused: list[_Ended] = []
        for one in batch:
            try:
                self._prepare(one)
            except Exception as error:
                token = one.read.token
                refused.append((token, self._broken(one.read, error), self._end(token)))
        while not self._ring.submit():
            time.sleep(KERNEL_BUSY_PAUSE_S)
        return cancelled, refused

    def _prepare(self, one: _ReadInKernel) -> None:
        read = one.read
        one.kept = self._ring.prepare_read(
            read.token,
            self._files.descriptor(read.file),
            read.offset_bytes + one.done_bytes,
            remaining(read, one.done_bytes),
        )
        self._in_kernel[read.token] = one
