"""Which spread makes a grown set behave as the real one? A search over one number, as pure
functions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

FIRST_SPREAD = ((16_000, 0.9), (200_000, 1.3), (1_000_000, 1.9), (5_400_000, 2.6))
"""Where the search begins, by rows; what fitted Wikipedia's introductions. Between them it is
interpolated by log(rows).
"""
STEP = 1.4
"""What a spread is multiplied or divided by while all trials lie on one side."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A spread that was tried. `excess`: how far the ceilings came out above the real ones; more
    spread brings them down.
    """

    spread: float
    excess: float


def first_spread(row_count: int, table: Sequence[tuple[int, float]] = FIRST_SPREAD) -> float:
    """Returns the spread to begin with for a set of `row_count` rows."""
    if row_count <= table[0][0]:
        return table[0][1]
    for (few, low), (many, high) in itertools.pairwise(table):
        if row_count <= many:
            return low + (high - low) * math.log(row_count / few) / math.log(many / few)
    return table[-1][1]


def next_spread(trials: Sequence[Trial]) -> float:
    """Returns the spread to try after `trials`, at least one.

    While all lie on one side, a step further; else between the nearest on both sides, where the
    line through them crosses zero over log(spread), but not closer to either than a fifth of the
    way: measured excesses are noisy.
    """
    above = [trial for trial in trials if trial.excess > 0]
    below = [trial for trial in trials if trial.excess <= 0]
    if not below:
        return max(trial.spread for trial in above) * STEP
    if not above:
        return min(trial.spread for trial in below) / STEP
    left = max(above, key=lambda trial: trial.spread)
    right = min(below, key=lambda trial: trial.spread)
    share = min(0.8, max(0.2, left.excess / (left.excess - right.excess)))
    return math.exp(math.log(left.spread) * (1 - share) + math.log(right.spread) * share)
