"""A faulty disk for tests: a block engine around another one, whose reads are slow, fail or hang.

The inner engine reads; `fault` says what happens to each read on its way out. It works around
every engine: io_uring or threads over files, or segments in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from carpool.clock import Clock, SystemClock
from carpool.errors import CorruptionError, RetryableError
from searcher.store.engine import BlockEngine, BlockError, BlockRead, CancelledRead, OnDone

Fault = Literal["hang", "flip", "short"] | float | BlockError | None
"""What happens to a read. A number: it ends so many seconds late. `hang`: it ends when it is
released. `flip`: one bit in its middle is flipped. `short`: the file ends in its middle. An error:
the read fails with it; `RetryableError` if a second try may succeed. None: nothing.
"""


@dataclass
class FaultyDisk:
    """Implements `BlockEngine`. `fault` is called for each read that `inner` has ended.

    `fault` may be replaced at any time. `seen`: every read that was submitted, with its buffers. A
    late read does not count among the `depth` of `inner`. Release the reads that hang before the
    end of a test.
    """

    inner: BlockEngine
    fault: Callable[[BlockRead], Fault] = lambda _: None
    clock: Clock = field(default_factory=SystemClock)
    seen: list[BlockRead] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._reads: dict[int, BlockRead] = {}
        self._late_since_us: dict[int, int] = {}  # of reads that are late or hang
        self._hanging: dict[int, int] = {}  # and how long the inner engine took
        self._timers: list[threading.Timer] = []

    @property
    def hanging(self) -> int:
        """The number of reads that hang."""
        with self._changed:
            return len(self._hanging)

    def wait_until_hanging(self, count: int = 1, timeout_s: float = 30.0) -> None:
        """Blocks until so many reads hang. Raises `TimeoutError`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._hanging) >= count, timeout_s):
                raise TimeoutError(
                    f"{len(self._hanging)} reads hang after {timeout_s:g} s, not {count}"
                )

    def release(self) -> None:
        """Ends all reads that hang, without an error."""
        with self._changed:
            released, self._hanging = self._hanging, {}
            for token in released:
                del self._late_since_us[token]
        for token, latency_us in released.items():
            self._on_done(token, None, latency_us)

    # ---- the engine

    def start(self, on_done: OnDone) -> None:
        """Starts the inner engine."""
        self._on_done = on_done
        self.inner.start(self._end)

    def submit(self, reads: Sequence[BlockRead]) -> None:
        """Submits reads."""
        with self._changed:
            self.seen.extend(reads)
            self._reads.update((read.token, read) for read in reads)
        self.inner.submit(reads)

    def cancel(self, tokens: Sequence[int]) -> None:
        """Cancels the reads that the inner engine has not started."""
        self.inner.cancel(tokens)

    def promote(self, tokens: Sequence[int]) -> None:
        """Makes prefetches demand reads."""
        self.inner.promote(tokens)

    def give_up(self, tokens: Sequence[int]) -> None:
        """Stops counting these reads."""
        self.inner.give_up(tokens)

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]:
        """Returns the reads in progress; one that hangs has been in progress since time 0."""
        with self._changed:
            late = tuple(
                token for token, since_us in self._late_since_us.items() if since_us < before_us
            )
        return (*self.inner.with_kernel_since(before_us), *late)

    def close(self, timeout_s: float) -> bool:
        """Waits for late reads, then closes the inner engine; False while reads hang."""
        for timer in self._timers:
            timer.join()
        return self.inner.close(timeout_s) and not self._hanging

    def _end(self, token: int, error: BlockError | None, latency_us: int) -> None:
        """Ends a read of the inner engine, on one of its threads."""
        with self._changed:
            read = self._reads.pop(token)
        fault = self.fault(read) if error is None else None
        match fault:
            case "hang":
                with self._changed:
                    self._hanging[token], self._late_since_us[token] = latency_us, 0
                    self._changed.notify_all()
                return
            case float() | int():
                self._end_late(token, fault, latency_us)
                return
            case "flip":
                read.buffers[0][len(read.buffers[0]) // 2] ^= 1
            case "short":
                error = _cut_short(read)
            case CorruptionError() | RetryableError() | CancelledRead():
                error = fault
        self._on_done(token, error, latency_us)

    def _end_late(self, token: int, late_s: float, latency_us: int) -> None:
        def end() -> None:
            with self._changed:
                del self._late_since_us[token]
            self._on_done(token, None, latency_us + int(late_s * 1_000_000))

        timer = threading.Timer(late_s, end)
        with self._changed:
            self._late_since_us[token] = self.clock.now_us() - latency_us
            self._timers.append(timer)
        timer.start()


def _cut_short(read: BlockRead) -> CorruptionError:
    end_bytes = read.offset_bytes + read.size_bytes // 2
    return CorruptionError(
        f"segment {read.file} ends at byte {end_bytes}, within a read: the faulty disk cut it",
        path=f"segment {read.file}",
        offset_bytes=end_bytes,
    )
