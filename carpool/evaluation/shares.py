"""Means and shares with their 95 % intervals. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import mean, stdev

import msgspec

Z_95 = 1.959964
"""The number of standard deviations around the mean that hold 95 % of a normal distribution."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The true share is between `low` and `high` in 95 of 100 such runs."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        """Returns the share and its interval, such as `0.38 (0.29 to 0.48)`."""
        return f"{self.share:.2f} ({self.low:.2f} to {self.high:.2f})"


def share_of(yes: Iterable[float]) -> Share:
    """Returns the share of True with Wilson's score interval; 0 to 1 where there are no values.

    Wilson's interval, unlike the normal one, holds for shares near 0 and 1 and for few values. It
    is wider than it needs to be for values between 0 and 1, such as shares of one answer.
    """
    values = list(yes)
    count, total = sum(values), len(values)
    if not total:
        return Share(share=0.0, low=0.0, high=1.0)
    share, z2 = count / total, Z_95 * Z_95
    # (p + z^2/2n ± z * sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    middle = share + z2 / (2 * total)
    half = Z_95 * sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    scale = 1 + z2 / total
    low, high = (middle - half) / scale, (middle + half) / scale
    return Share(share=share, low=max(0.0, low), high=min(1.0, high))


def mean_of(values: Sequence[float]) -> Share:
    """Returns the mean of values from 0 to 1 with its normal 95 % interval."""
    if len(values) < 2:
        return Share(share=sum(values), low=0.0, high=1.0)
    middle, half = mean(values), Z_95 * stdev(values) / sqrt(len(values))
    return Share(share=middle, low=max(0.0, middle - half), high=min(1.0, middle + half))


def difference_of(pairs: Sequence[tuple[float, float]]) -> Share:
    """Returns the mean of second minus first, of values from 0 to 1 in pairs; -1 to 1 without any.

    The interval is the normal one of paired values, with half a pair more for each of the four
    outcomes of yes and no (Agresti and Min, 2005, "Wald+2"). It holds for few pairs too.
    """
    if not pairs:
        return Share(share=0.0, low=-1.0, high=1.0)
    changes = [after - before for before, after in pairs]
    total = len(changes) + 2
    # of the two pairs more, half a pair has the change 1 and half a pair the change -1
    middle, square = sum(changes) / total, (sum(each * each for each in changes) + 1) / total
    half = Z_95 * sqrt((square - middle * middle) / total)
    return Share(share=mean(changes), low=max(-1.0, middle - half), high=min(1.0, middle + half))
