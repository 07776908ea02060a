"""The clock that is passed in: epoch microseconds that never decrease within a process."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time; tests pass one that they move."""

    def now_us(self) -> int:
        """Returns the time in epoch microseconds. Does not block."""


class SystemClock:
    """Wall-clock time at the start plus monotonic time: comparable across processes."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_us(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000
