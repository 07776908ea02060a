"""Decides when a member that only fails leaves its consumer group, and when it comes back. Pure.

A member whose records fail one after another is sick: its disk, its model or its memory may be
broken, and another member can do its work. It leaves, so that others take its partitions, and comes
back after a pause with one record at a time, until one succeeds. So does a member that has an older
index than the others.
"""

from __future__ import annotations

from typing import Literal

AWAY_US_MIN = 10_000_000
AWAY_US_MAX = 300_000_000
"""A pause; each further one without a success in between is twice as long."""
WRITE_US_MAX = 5_000_000
"""How long finished work may take to be written before the member leaves anyway."""


class MemberHealth:
    """Times are epoch microseconds. Not thread-safe."""

    def __init__(self, failures_max: int) -> None:
        """`failures_max`: failed records without a success in between; then the member leaves."""
        self._failures_max = failures_max
        self._failures = 0
        self._away_us = AWAY_US_MIN
        self._until_us = 0
        self._leave_by_us: int | None = None
        self.is_leaving = False
        """Whether the member only writes finished work before it leaves."""
        self.is_away = False
        """Whether the member has left its group."""
        self.is_on_trial = False
        """Whether the member takes one record at a time, because it has just come back."""
        self.reason: str | None = None
        """Why the member leaves, is away or is on trial, in words."""

    def failed(self, message: str) -> bool:
        """Notes a failed record; returns whether it must stay unfinished, for another member."""
        self._failures += 1
        if self._failures >= self._failures_max or self.is_on_trial:
            self.is_leaving = True
            self.reason = (
                f"{self._failures} records failed in a row and none succeeded, the last with: "
                f"{message}. This member leaves its consumer group, so that another one does its "
                "work, and comes back with one record; nothing is lost. Fix what the message names"
            )
        return self.is_leaving

    def leave(self, reason: str) -> None:
        """Notes that this member cannot work, for a reason that another member may not have."""
        self.is_leaving, self.reason = True, reason

    def succeeded(self) -> None:
        """Notes a record that did not fail."""
        self._failures = 0
        if self.is_on_trial and not self.is_leaving:
            self.is_on_trial, self.reason, self._away_us = False, None, AWAY_US_MIN

    def next_step(self, now_us: int, *, is_written: bool) -> Literal["leave", "join"] | None:
        """Returns what the member does now. After "leave" or "join" it has done so.

        `is_written`: no finished work waits to be written, which leaving would discard.
        """
        if self.is_leaving:
            if self._leave_by_us is None:
                self._leave_by_us = now_us + WRITE_US_MAX
            if not is_written and now_us < self._leave_by_us:
                return None
            self.is_leaving, self.is_on_trial, self.is_away = False, False, True
            self._leave_by_us = None
            self._until_us = now_us + self._away_us
            self._away_us = min(2 * self._away_us, AWAY_US_MAX)
            return "leave"
        if self.is_away and now_us >= self._until_us:
            self.is_away, self.is_on_trial = False, True
            return "join"
        return None
