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

from collections.abc import Iterable

ALLOWED_FALL = 0.35
"""By how much values may fall for good, in standard deviations of a value. More is found sooner."""
ALARM = 15.0
"""The sum at which values have fallen, in standard deviations."""
VALUES_MIN = 20
"""Values that must be known before the standard deviation is used."""
MEAN_VALUES_MIN = 100
"""Values that must be known, with those that were expected, before the mean is used."""
DEVIATION_MIN = 0.01
"""The least standard deviation that is used: that of values that are all equal is 0."""


class PageTest:
    """The mean that values had so far, and the sum of the falls below it."""

    def __init__(self, mean: float = 0.0, count: float = 0.0) -> None:
        """`mean`: what is expected before any value is known; it counts as `count` values."""
        self._prior_total = mean * count
        self._prior_count = count
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0  # of the differences from the mean
        self._sum = 0.0

    def learn(self, values: Iterable[float]) -> None:
        """Adds values to the mean that is expected from now on."""
        for value in values:  # Welford
            self._count += 1
            off = value - self._mean
            self._mean += off / self._count
            self._squares += off * (value - self._mean)

    def has_fallen(self, mean: float, count: float) -> bool:
        """Adds `count` values of this mean to the sum. Returns whether values have fallen.

        Values that are all equal to the expected mean raise no alarm.
        """
        known = self._prior_count + self._count
        if self._count < VALUES_MIN or known < MEAN_VALUES_MIN:
            return False
        expected = (self._prior_total + self._mean * self._count) / known
        deviation = max((self._squares / (self._count - 1)) ** 0.5, DEVIATION_MIN)
        self._sum = max(0.0, self._sum + count * ((expected - mean) / deviation - ALLOWED_FALL))
        return self._sum > ALARM
