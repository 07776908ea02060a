"""A clock for tests: it stands still unless it is moved."""

from __future__ import annotations

NOW_US = 1_800_000_000_000_000
"""Some moment in 2027."""


class HandClock:
    """A clock that stands still unless a test moves it, or `step_us` moves it at each look."""

    lead_us = 0

    def __init__(self, time_us: int = NOW_US, *, step_us: int = 0) -> None:
        self.time_us = time_us
        self.step_us = step_us

    def now_us(self) -> int:
        self.time_us += self.step_us
        return self.time_us

    def host_lead_us(self) -> int:
        return self.lead_us

    def sleep(self, us: int) -> None:
        self.time_us += us
