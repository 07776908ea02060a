"""When does a transaction begin? Records come in waves, those of the transaction before, and a wave should leave as one.

The first of a wave to be finished could leave at once, but then all others of it would wait for that transaction and the pause
after it. So finished work waits for what else is in hand, for milliseconds. Pure: no clock.
"""

from __future__ import annotations

QUIET_US = 3_000
"""What is in hand and not finished so long after the last that was is not of its wave."""
GATHER_US = 10_000
"""No work waits longer for other work."""


class Gathering:
    """What was finished since the last transaction was put together. One thread calls `taken` and `due_us`, any calls `came`."""

    def __init__(self) -> None:
        self._first_us: int | None = None
        self._last_us = 0

    def came(self, now_us: int) -> None:
        """Says that work was finished."""
        self._last_us = now_us
        if self._first_us is None:
            self._first_us = now_us

    def taken(self) -> None:
        """Says that all that came so far is in a transaction, or waits for its own reasons."""
        self._first_us = None

    def due_us(self, next_us: int, *, is_working: bool) -> int:
        """Returns when the next transaction is to begin, not before `next_us`. `is_working`: whether more is in hand."""
        first_us = self._first_us
        if first_us is None or not is_working:
            return next_us
        return max(next_us, min(self._last_us + QUIET_US, max(next_us, first_us) + GATHER_US))
