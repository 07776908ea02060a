"""An engine around another one, in which reads fail, come late, come damaged or do not come back until they are let go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from searcher.store.engine import BlockEngine, BlockError, BlockRead, OnDone

Fault = Literal["hang", "flip"] | float | BlockError | None
"""What happens to a read: it comes back when it is released, has a flipped byte, comes so many seconds late, or fails."""


@dataclass
class FaultyEngine:
    """Asks `fault` about each read when it has ended. Keeps every read that was submitted in `seen`."""

    inner: BlockEngine
    fault: Callable[[BlockRead], Fault] = lambda _: None
    seen: list[BlockRead] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.reads: dict[int, BlockRead] = {}
        self.hanging: dict[int, tuple[BlockError | None, int]] = {}
        self.timers: list[threading.Timer] = []

    def start(self, on_done: OnDone) -> None:
        self.on_done = on_done
        self.inner.start(self._end)

    def submit(self, reads: Sequence[BlockRead]) -> None:
        with self.changed:
            self.seen.extend(reads)
            self.reads.update((read.token, read) for read in reads)
            self.changed.notify_all()
        self.inner.submit(reads)

    def cancel(self, tokens: Sequence[int]) -> None:
        self.inner.cancel(tokens)

    def promote(self, tokens: Sequence[int]) -> None:
        self.inner.promote(tokens)

    def give_up(self, tokens: Sequence[int]) -> None:
        self.inner.give_up(tokens)

    def with_kernel_since(self, before_us: int) -> tuple[int, ...]:
        """A read that hangs is with the kernel, for all that anybody can see."""
        with self.changed:
            hanging = tuple(token for token, (_, ended_us) in self.hanging.items() if ended_us < before_us)
        return (*self.inner.with_kernel_since(before_us), *hanging)

    def close(self, timeout_s: float) -> bool:
        for timer in self.timers:
            timer.join()
        return self.inner.close(timeout_s) and not self.hanging

    def release(self) -> None:
        """Lets go of all reads that hang."""
        with self.changed:
            released, self.hanging = self.hanging, {}
        for token, (error, _) in released.items():
            self.on_done(token, error, 1)

    def _end(self, token: int, error: BlockError | None, latency_us: int) -> None:
        with self.changed:
            read = self.reads.pop(token)
        fault = self.fault(read) if error is None else None
        if fault == "hang":
            with self.changed:
                self.hanging[token] = (error, 0)
                self.changed.notify_all()
            return
        if fault == "flip":
            read.buffers[0][len(read.buffers[0]) // 2] ^= 1
        elif isinstance(fault, float):
            timer = threading.Timer(fault, self.on_done, (token, error, latency_us))
            self.timers.append(timer)
            timer.start()
            return
        elif fault is not None:
            error = fault
        self.on_done(token, error, latency_us)
