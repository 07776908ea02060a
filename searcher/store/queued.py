"""What all block engines share: the queue of reads, and the report of their ends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import structlog

from carpool.clock import Clock
from carpool.errors import RetryableError
from searcher.store.engine import BlockError, BlockRead, CancelledRead, OnDone
from searcher.store.waiting import WaitingReads

_log = structlog.get_logger(__name__)


class QueuedEngine:
    """The calls of `BlockEngine` that change the queue. A subclass defines `_wake_up`."""

    def __init__(self, *, depth: int, prefetch_depth: int, clock: Clock) -> None:
        self._depth = depth
        self._clock = clock
        self._changed = threading.Condition()  # guards the queue and `_cancelled`
        self._waiting = WaitingReads(depth=depth, prefetch_depth=prefetch_depth)
        self._cancelled: deque[int] = deque()  # tokens whose end is not reported yet
        self._is_closing = False
        self._on_done: OnDone

    def submit(self, reads: Sequence[BlockRead]) -> None:
        """Adds reads to the queue; after `close` they are cancelled."""
        with self._changed:
            if self._is_closing:
                self._cancelled.extend(read.token for read in reads)
            else:
                self._waiting.put(reads)
            self._wake_up(len(reads))

    def cancel(self, tokens: Sequence[int]) -> None:
        """Removes reads from the queue."""
        with self._changed:
            self._cancelled.extend(self._waiting.cancel(tokens))
            self._wake_up(len(tokens))

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes prefetches demand reads."""
        with self._changed:
            self._waiting.promote(tokens)
            self._wake_up(len(tokens))

    def give_up(self, tokens: Sequence[int]) -> None:
        """Lets other reads start in the place of reads that hang."""
        with self._changed:
            self._waiting.give_up(tokens)
            self._wake_up(len(tokens))

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]:
        """Returns the tokens of unfinished reads that started before `before_us`."""
        with self._changed:
            return self._waiting.started_before(before_us)

    def _stop(self) -> None:
        """Cancels the queue, and all reads that are submitted later."""
        self._is_closing = True
        self._cancelled.extend(self._waiting.cancel_all())

    def _wake_up(self, count: int) -> None:
        """The queue changed for `count` reads. Called with the lock."""
        raise NotImplementedError

    def _end(self, token: int) -> int:
        """Removes a read that ended, and returns its microseconds with the kernel."""
        with self._changed:
            return self._waiting.end(token, self._clock.now_us())

    def _broken(self, read: BlockRead, error: Exception) -> RetryableError:
        """Returns the error of a read in which this code failed.

        An unexpected error must also end the read, or its caller waits forever.
        """
        _log.exception("read broke", file=read.file, offset_bytes=read.offset_bytes)
        place = f"segment {read.file} at byte {read.offset_bytes}"
        return RetryableError(f"a read of {place} broke: {error!r}")

    def _report(self, token: int, error: BlockError | None, latency_us: int) -> None:
        try:
            self._on_done(token, error, latency_us)
        except Exception:  # an error of the listener must not stop the engine
            _log.exception("the end of a read could not be reported", token=token)

    def _report_cancelled(self, token: int) -> None:
        self._report(token, CancelledRead("cancelled before it began"), 0)
