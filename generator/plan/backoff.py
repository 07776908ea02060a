"""How long to pause after a refusal: a pause that doubles with each refusal in a row. Pure."""

from __future__ import annotations

DOUBLINGS_MAX = 32
"""Keeps the numbers small: every maximum that the settings allow is reached much earlier."""


class Backoff:
    """Pauses of `us_min` * 2^(refusals in a row - 1) microseconds, at most `us_max`."""

    def __init__(self, us_min: int, us_max: int) -> None:
        self._us_min = us_min
        self._us_max = us_max
        self._refusals_in_row = 0

    def next_us(self) -> int:
        """Counts a refusal, and returns how long to pause after it."""
        doublings = min(self._refusals_in_row, DOUBLINGS_MAX)
        self._refusals_in_row += 1
        return min(self._us_min << doublings, self._us_max)

    def reset(self) -> None:
        """Ends the row of refusals."""
        self._refusals_in_row = 0
