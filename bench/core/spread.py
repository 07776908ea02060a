"""Spreads of values within a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one run: percentiles over all of them."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float

    def __str__(self) -> str:
        """Returns `p50 / p99 / max`."""
        return f"{self.p50:,.1f} / {self.p99:,.1f} / {self.max:,.1f}"


def spread(values: Iterable[float]) -> Spread | None:
    """Returns the spread of `values`, None without any. Percentiles interpolate."""
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
