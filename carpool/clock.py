"""The clock that is passed in: epoch microseconds that never decrease within a process."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time; tests pass one that they move."""

    def now_us(self) -> int:
        """Returns the time in epoch microseconds. Does not block."""

    def host_lead_us(self) -> int:
        """Returns how far the host's clock was set ahead since the start; below 0: back.

        Measure waits with `now_us`. Compare deadlines and time stamps with `now_us() +
        host_lead_us()`.
        """


class SystemClock:
    """Wall-clock time at the start plus monotonic time: comparable across processes."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_us(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000

    def host_lead_us(self) -> int:
        lead_us = (time.time_ns() - time.monotonic_ns() - self._offset_ns) // 1_000
        return lead_us if abs(lead_us) > 100_000 else 0  # two readings take time
