"""Measures how fast the disk reads clusters, to expect how long a search still takes. Pure."""

from __future__ import annotations

SMOOTHING = 0.1
"""Weight of the newest read."""


class ReadSpeed:
    """The bytes a second that the disk delivers while it is busy; the newest reads weigh most.

    Times are microseconds. Reads may overlap.
    """

    def __init__(self) -> None:
        self._reading = 0
        self._since_us = 0  # the last end of a read, or the beginning after a pause
        self._bytes = 0.0
        self._took_us = 0.0

    def began(self, now_us: int) -> None:
        """A read was submitted."""
        if not self._reading:
            self._since_us = now_us
        self._reading += 1

    def ended(self, size_bytes: int, now_us: int) -> None:
        """A read of `size_bytes` has ended; 0: it failed."""
        assert self._reading > 0, "a read ended that had not begun"
        self._reading -= 1
        took_us, self._since_us = now_us - self._since_us, now_us
        self._bytes += SMOOTHING * (size_bytes - self._bytes)
        self._took_us += SMOOTHING * (max(0, took_us) - self._took_us)

    def expected_us(self, size_bytes: int) -> int:
        """Returns how long reads of `size_bytes` should take; 0 while nothing was read."""
        return round(size_bytes * self._took_us / self._bytes) if self._bytes else 0
