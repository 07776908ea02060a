"""Page's test: have values fallen below what they were? Pure.

A sum grows with each value that is below the mean, and shrinks with each that is above it; it is
never below zero. When it is large, the values have fallen (E. S. Page, Continuous Inspection
Schemes, Biometrika 1954). An alarm comes a few dozen values after a fall by a standard deviation.

*False alarms:* one in about 300,000 values, by Siegmund's approximation of the run length,
(exp(2 k b) - 2 k b - 1) / (2 k^2), where k is `ALLOWED_FALL` and b is `ALARM` + 1.166. It holds
where values do not depend on each other and the mean is known. If the expected mean is too high by
0.15 standard deviations, as that of few values may be, it is one in 8,000.
"""

from __future__ import annotations

from collections.abc import Sequence

ALLOWED_FALL = 0.35
"""By how much values may fall for good, in standard deviations of a value. More is found sooner."""
ALARM = 15.0
"""The sum at which values have fallen, in standard deviations."""
VALUES_MIN = 100
"""Values that must be known before their mean and standard deviation are used."""
DEVIATION_MIN = 0.01
"""The least standard deviation that is used: that of values that are all equal is 0."""


class PageTest:
    """The mean that values had so far, and the sum of the falls below it."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0  # of the differences from the mean
        self._sum = 0.0

    def has_fallen(self, values: Sequence[float]) -> bool:
        """Adds values that came together. Returns whether values have fallen.

        Those before the alarm are the mean that is expected of the next ones. Values that are all
        equal raise no alarm.
        """
        if self._count >= VALUES_MIN:
            deviation = max((self._squares / (self._count - 1)) ** 0.5, DEVIATION_MIN)
            fall = (self._mean - sum(values) / max(1, len(values))) / deviation
            self._sum = max(0.0, self._sum + len(values) * (fall - ALLOWED_FALL))
        if self._sum > ALARM:
            return True
        for value in values:  # Welford
            self._count += 1
            off = value - self._mean
            self._mean += off / self._count
            self._squares += off * (value - self._mean)
        return False
