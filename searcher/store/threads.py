"""The engine of threads: `depth` of them, each with one read at a time. It works wherever Python
does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from carpool.clock import Clock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.engine import BlockError, BlockRead, CancelledRead, OnDone
from searcher.store.waiting import WaitingReads

_log = structlog.get_logger(__name__)


class ThreadEngine:
    """Calls `read_block` for each read; see `BlockEngine` for what each method promises.

    `read_block` blocks until the buffers are full, or raises `CorruptionError` or `RetryableError`;
    whoever passed it in closes what it reads from, after `close` has returned True.
    """

    def __init__(
        self,
        read_block: Callable[[BlockRead], None],
        *,
        depth: int,
        prefetch_depth: int,
        clock: Clock,
    ) -> None:
        self._read_block = read_block
        self._clock = clock
        self._depth = depth
        self._changed = threading.Condition()
        self._waiting = WaitingReads(depth=depth, prefetch_depth=prefetch_depth)
        self._cancelled: deque[int] = deque()
        self._is_closing = False
        # One more than reads at a time: somebody must be free to tell what was cancelled while all
        # reads hang.
        self._threads = [self._thread() for _ in range(depth + 1)]

    def start(self, on_done: OnDone) -> None:
        """Starts the threads."""
        self._on_done = on_done
        for thread in self._threads:
            thread.start()

    def submit(self, reads: Sequence[BlockRead]) -> None:
        """Takes in reads."""
        with self._changed:
            if self._is_closing:
                self._cancelled.extend(read.token for read in reads)
            else:
                self._waiting.put(reads)
            self._changed.notify(len(reads))

    def cancel(self, tokens: Sequence[int]) -> None:
        """Drops what no thread has begun with."""
        with self._changed:
            self._cancelled.extend(self._waiting.cancel(tokens))
            self._changed.notify_all()

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes demands of prefetches."""
        with self._changed:
            self._waiting.promote(tokens)
            self._changed.notify_all()

    def give_up(self, tokens: Sequence[int]) -> None:
        """Starts a thread for each that hangs, up to `depth` of them; they stay."""
        with self._changed:
            self._waiting.give_up(tokens)
            if self._is_closing:
                return
            while len(self._threads) < self._depth + 1 + self._waiting.given_up:
                self._threads.append(self._thread())
                self._threads[-1].start()

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]:
        """Returns the reads that were begun before `before_us`."""
        with self._changed:
            return self._waiting.started_before(before_us)

    def close(self, timeout_s: float) -> bool:
        """Ends each thread after the read that it is at."""
        with self._changed:
            self._is_closing = True
            self._cancelled.extend(self._waiting.cancel_all())
            self._changed.notify_all()
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _thread(self) -> threading.Thread:
        return threading.Thread(target=self._work, name="reader", daemon=True)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if isinstance(job, int):
                self._tell(job, CancelledRead("cancelled before it began"), 0)
                continue
            error = self._read(job)
            token = job.token
            job = None  # while this thread waits for the next read, it must hold no buffer
            with self._changed:
                latency_us = self._waiting.end(token, self._clock.now_us())
                self._changed.notify()
            self._tell(token, error, latency_us)

    def _next(self) -> BlockRead | int | None:
        """Returns a read to do, or the token of one that was cancelled; None at the end."""
        with self._changed:
            while True:
                if self._cancelled:
                    return self._cancelled.popleft()
                if (read := self._waiting.take(self._clock.now_us())) is not None:
                    return read
                if self._is_closing:
                    return None
                self._changed.wait()

    def _read(self, read: BlockRead) -> BlockError | None:
        try:
            self._read_block(read)
        except (CorruptionError, RetryableError) as error:
            return error.with_traceback(None)  # a traceback would hold the buffers
        except (
            Exception
        ) as error:  # also a fault of our own must not leave anybody waiting for ever
            _log.exception("read broke", file=read.file, offset_bytes=read.offset_bytes)
            return RetryableError(
                f"a read of segment {read.file} at byte {read.offset_bytes} broke: {error!r}"
            )
        return None

    def _tell(self, token: int, error: BlockError | None, latency_us: int) -> None:
        try:
            self._on_done(token, error, latency_us)
        except Exception:  # the engine outlives a fault of whoever listens
            _log.exception("the end of a read could not be told", token=token)
