"""Spreads of values within a run, and ranges of figures over runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

import msgspec
import numpy as np


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one run: percentiles over all of them."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over `count` runs: the median, the lowest and the highest."""

    median: float
    min: float
    max: float
    count: int


def spread(values: Iterable[float]) -> Spread | None:
    """Returns the spread of `values`, or None where there are none.

    Percentiles interpolate between neighbours.
    """
    array = np.fromiter(values, dtype=np.float64)
    if not array.size:
        return None
    p50, p99 = np.percentile(array, (50, 99))
    return Spread(
        count=int(array.size),
        mean=float(array.mean()),
        p50=float(p50),
        p99=float(p99),
        max=float(array.max()),
    )


def spreads(values: Mapping[str, Iterable[float]]) -> dict[str, Spread]:
    """Returns the spread of each, without those that have no values."""
    found = {name: spread(each) for name, each in values.items()}
    return {name: each for name, each in found.items() if each is not None}


def over_runs(values: Iterable[float]) -> Range | None:
    """Returns the range of `values`, one of each run, or None where there are none."""
    found = sorted(values)
    if not found:
        return None
    return Range(median=median(found), min=found[0], max=found[-1], count=len(found))
