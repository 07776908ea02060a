"""From measured cells to figures: spreads over seeds, ratios paired by seed. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

import msgspec


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over seeds: the median, and the lowest and highest of `count`."""

    median: float
    min: float
    max: float
    count: int


def over_seeds(values: Iterable[float]) -> Range | None:
    """Returns the range of `values`, None where there are none."""
    found = sorted(values)
    if not found:
        return None
    return Range(median=median(found), min=found[0], max=found[-1], count=len(found))


def paired_ratio(of: Mapping[int, float], to: Mapping[int, float]) -> Range | None:
    """Returns the range of `of[seed] / to[seed]` over the seeds that both have; a seed whose
    divisor is 0 is left out.

    Paired: a seed is a block of cells that ran next to each other on the same data, so that what
    changed between blocks (a busy machine, another data order) stands on both sides of a ratio.
    """
    return over_seeds(of[seed] / to[seed] for seed in sorted(of.keys() & to.keys()) if to[seed])


def differ_by_share(one: float, other: float) -> float:
    """Returns how far two counts are apart, as a share of the larger; 0 where both are 0."""
    larger = max(abs(one), abs(other))
    return abs(one - other) / larger if larger else 0.0
