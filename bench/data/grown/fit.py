"""The search for the spread at which a grown set behaves as the real one. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

FIRST_SPREAD = ((16_000, 0.9), (200_000, 1.3), (1_000_000, 1.9), (5_400_000, 2.6))
"""Where the search begins, by rows (interpolated by log): it fitted Wikipedia's introductions."""
STEP = 1.4
"""The factor between spreads while all trials are on one side."""
FITTED_PART = 3
"""At most one question in three chooses the spread, the last ones; the others judge the set."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A spread that was tried. `excess`: ceilings less the real ones; more spread lowers it."""

    spread: float
    excess: float


def first_spread(row_count: int) -> float:
    """Returns the spread to begin with for a set of `row_count` rows."""
    if row_count <= FIRST_SPREAD[0][0]:
        return FIRST_SPREAD[0][1]
    for (few, low), (many, high) in itertools.pairwise(FIRST_SPREAD):
        if row_count <= many:
            return low + (high - low) * math.log(row_count / few) / math.log(many / few)
    return FIRST_SPREAD[-1][1]


def next_spread(trials: Sequence[Trial]) -> float:
    """Returns the spread to try after `trials`, at least one.

    While all are on one side, a step further; else between the nearest on both sides, where the
    line through them crosses zero over log(spread), but at least a fifth of the way from either,
    because measured excesses are noisy.
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
