"""The engine of threads: `depth` threads, each with one read at a time. It works everywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from carpool.clock import Clock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.engine import BlockError, BlockRead, OnDone
from searcher.store.queued import QueuedEngine


class ThreadEngine(QueuedEngine):
    """Implements `BlockEngine` by calling `read_block` for each read.

    `read_block` blocks until the buffers are full, or raises `CorruptionError` or `RetryableError`.
    The files that it reads may be closed after `close` has returned True.
    """

    def __init__(
        self,
        read_block: Callable[[BlockRead], None],
        *,
        depth: int,
        prefetch_depth: int,
        clock: Clock,
    ) -> None:
        super().__init__(depth=depth, prefetch_depth=prefetch_depth, clock=clock)
        self._read_block = read_block
        # One thread more than `depth`: it reports cancelled reads while all others are blocked in a
        # read.
        self._threads = [self._thread() for _ in range(depth + 1)]

    def start(self, on_done: OnDone) -> None:
        """Starts the threads."""
        self._on_done = on_done
        for thread in self._threads:
            thread.start()

    def close(self, timeout_s: float) -> bool:
        """Ends each thread after its current read."""
        with self._changed:
            self._stop()
            self._changed.notify_all()
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _wake_up(self, count: int) -> None:
        """Wakes threads; each read that was given up gets a further thread, which stays."""
        self._changed.notify(count)
        while len(self._threads) < self._depth + 1 + self._waiting.given_up:
            if self._is_closing:
                return
            self._threads.append(self._thread())
            self._threads[-1].start()

    def _thread(self) -> threading.Thread:
        return threading.Thread(target=self._work, name="reader", daemon=True)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if isinstance(job, int):
                self._report_cancelled(job)
                continue
            error = self._read(job)
            token = job.token
            job = None  # a thread that waits for its next read must keep no buffer
            with self._changed:
                latency_us = self._end(token)
                self._changed.notify()
            self._report(token, error, latency_us)

    def _next(self) -> BlockRead | int | None:
        """Returns a read to do, or the token of a cancelled one; None at the end. Blocks."""
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
            return error.with_traceback(None)  # a traceback would keep the buffers
        except Exception as error:
            return self._broken(read, error)
        return None
