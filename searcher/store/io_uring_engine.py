"""The engine of io_uring: one thread hands all reads to the kernel and hears of their ends, with
two system calls a batch.

The thread sleeps in a read of an eventfd that the kernel, or whoever submits, adds to.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Sequence

import structlog

from carpool.clock import Clock
from carpool.errors import RetryableError
from searcher.store.engine import BlockError, BlockRead, CancelledRead, OnDone
from searcher.store.files import SegmentFiles, remaining
from searcher.store.io_uring import Ring
from searcher.store.waiting import WaitingReads

_log = structlog.get_logger(__name__)

TRY_AGAIN = (errno.EAGAIN, errno.EINTR)
KERNEL_BUSY_PAUSE_S = 0.001

_Ended = tuple[int, BlockError | None, int]  # what is told


class _Held:
    """A read that the kernel has, how much of it is done, and what the kernel was told: alive until
    it has ended.
    """

    __slots__ = ("done_bytes", "kept", "read")

    def __init__(self, read: BlockRead) -> None:
        self.read = read
        self.done_bytes = 0
        self.kept: object = None


class IoUringEngine:
    """Reads blocks of `files`; see `BlockEngine` for what each method promises. Closes no file."""

    def __init__(
        self, files: SegmentFiles, *, depth: int, prefetch_depth: int, clock: Clock
    ) -> None:
        """Makes the ring. Raises `OSError` where the kernel has no io_uring, or does not allow
        it.
        """
        self._files = files
        self._depth = depth
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = WaitingReads(depth=depth, prefetch_depth=prefetch_depth)
        self._cancelled: deque[int] = deque()
        self._is_closing = False
        self._held: dict[int, _Held] = {}  # the ring's thread alone looks at it
        self._again: deque[_Held] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            # Of reads that were given up, up to `depth` may want to be gone on with at the moment
            # when as many others begin.
            self._ring = Ring(2 * depth, self._wake)
        except BaseException:
            os.close(self._wake)
            raise
        self._thread = threading.Thread(target=self._run, name="io-uring", daemon=True)

    def start(self, on_done: OnDone) -> None:
        """Starts the thread."""
        self._on_done = on_done
        self._thread.start()

    def submit(self, reads: Sequence[BlockRead]) -> None:
        """Takes in reads."""
        with self._lock:
            if self._is_closing:
                self._cancelled.extend(read.token for read in reads)
            else:
                self._waiting.put(reads)
            self._wake_up()

    def cancel(self, tokens: Sequence[int]) -> None:
        """Drops what the kernel has not got."""
        with self._lock:
            if dropped := self._waiting.cancel(tokens):
                self._cancelled.extend(dropped)
                self._wake_up()

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes demands of prefetches."""
        with self._lock:
            self._waiting.promote(tokens)
            self._wake_up()

    def give_up(self, tokens: Sequence[int]) -> None:
        """Lets others in beside reads that hang: the ring has room for twice `depth`."""
        with self._lock:
            self._waiting.give_up(tokens)
            self._wake_up()

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]:
        """Returns the reads that the kernel got before `before_us`."""
        with self._lock:
            return self._waiting.started_before(before_us)

    def close(self, timeout_s: float) -> bool:
        """Ends the thread once the kernel has given back everything."""
        with self._lock:
            self._is_closing = True
            self._cancelled.extend(self._waiting.cancel_all())
            self._wake_up()
            never_started = self._thread.ident is None
        if never_started:
            self._release()
        else:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _wake_up(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _release(self) -> None:
        with self._lock:
            if self._wake >= 0:
                self._ring.close()
                os.close(self._wake)
                self._wake = -1

    # ---- the ring's thread

    def _run(self) -> None:
        while True:
            ended = self._reap()
            cancelled, refused = self._refill()
            ended += refused
            # The kernel is busy again before anybody is told, and checks what was read.
            for token, error, latency_us in ended:
                self._tell(token, error, latency_us)
            for token in cancelled:
                self._tell(token, CancelledRead("cancelled before it began"), 0)
            if ended or cancelled:
                del ended
                continue  # more may have ended meanwhile
            with self._lock:
                if self._is_closing and not self._waiting.with_kernel and not self._cancelled:
                    break
            os.eventfd_read(self._wake)  # releases the interpreter's lock
        self._release()

    def _reap(self) -> list[_Ended]:
        """Takes what the kernel has ended. A part of a read is continued, what was interrupted is
        begun again.
        """
        ended = []
        for token, result in self._ring.completions():
            held = self._held.pop(token)
            is_over, error_or_none = self._judge(held, result)
            if is_over:
                ended.append(self._end(held, error_or_none))
            else:
                self._again.append(held)
        return ended

    def _judge(self, held: _Held, result: int) -> tuple[bool, BlockError | None]:
        """Returns whether a read is over, and what went wrong if anything."""
        read = held.read
        if result < 0:
            if -result in TRY_AGAIN:
                return False, None
            return True, self._files.failure(
                read, held.done_bytes, OSError(-result, os.strerror(-result))
            )
        if result == 0:
            return True, self._files.cut_short(read, held.done_bytes)
        held.done_bytes += result
        if held.done_bytes < read.size_bytes:
            return False, None
        self._files.forget(read)
        return True, None

    def _refill(self) -> tuple[list[int], list[_Ended]]:
        """Gives the kernel as many reads as it may have; returns what was cancelled, and what
        cannot even be begun.
        """
        batch = [*self._again]
        self._again.clear()
        with self._lock:
            cancelled = [*self._cancelled]
            self._cancelled.clear()
            now_us = self._clock.now_us()
            while (read := self._waiting.take(now_us)) is not None:
                batch.append(_Held(read))
        refused = []
        for held in batch:
            try:
                self._prepare(held)
            except Exception as error:  # a fault of our own must not leave anybody waiting for ever
                _log.exception(
                    "read broke", file=held.read.file, offset_bytes=held.read.offset_bytes
                )
                refused.append(
                    self._end(
                        held, RetryableError(f"a read of segment {held.read.file} broke: {error!r}")
                    )
                )
        while not self._ring.submit():
            time.sleep(KERNEL_BUSY_PAUSE_S)
        return cancelled, refused

    def _prepare(self, held: _Held) -> None:
        read = held.read
        held.kept = self._ring.prepare_read(
            read.token,
            self._files.descriptor(read.file),
            read.offset_bytes + held.done_bytes,
            remaining(read, held.done_bytes),
        )
        self._held[read.token] = held

    def _end(self, held: _Held, error: BlockError | None) -> _Ended:
        with self._lock:
            latency_us = self._waiting.end(held.read.token, self._clock.now_us())
        return held.read.token, error, latency_us

    def _tell(self, token: int, error: BlockError | None, latency_us: int) -> None:
        try:
            self._on_done(token, error, latency_us)
        except Exception:  # the engine outlives a fault of whoever listens
            _log.exception("the end of a read could not be told", token=token)
