"""How many rows are read for a query, after its codes were scanned. Pure.

Codes give estimates of scores. A row may be among the best `top_k` if its estimate is at most a
margin below that of the `top_k`-th estimate. The margin is a multiple of the standard deviation of
an estimate's error, which RaBitQ bounds: the error is normally distributed, proportional to the
distances of query and row from the centroid, and to 1 / sqrt(dimension). Its constants for each
codec were measured (docs/benchmarks.md); distances of normalised vectors are at most about 1.2 and
1 (RaBitQ: Gao and Long, SIGMOD 2024, Theorem 3.2).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from schemas.query import SearchMode

EXPECTED_RECALL: dict[SearchMode, float] = {"default": 0.998, "margin": 0.9999, "exact": 1.0}
"""The least share of ids that are those of an exact search of the same clusters."""
COUNT_MAX = 2048
"""Rows that are read for a query at most."""

_ERRORS = {"rabitq1": 0.70, "rabitq2": 0.38, "rabitq3": 0.17, "rabitq4": 0.098}
"""Standard deviation of an error, times sqrt(dimension), for distances of 1."""
_DISTANCES = 1.2
_DEVIATIONS: dict[SearchMode, float] = {"default": 3.3, "margin": 4.8}
_MOST = 0.6
"""Share of the margin that the first scan must cover. Few of the best rows are farther away."""
_FIRST_COUNTS = {"rabitq1": (60, 400), "rabitq2": (14, 110), "rabitq3": (4, 16), "rabitq4": (2, 5)}
"""Rows to propose at first: so many times `top_k`, and so many more."""


def margin(codec: str, dimension: int, mode: SearchMode) -> float:
    """Returns the margin of estimates. `mode`: an exact search has none."""
    return _DEVIATIONS[mode] * _ERRORS[codec] * _DISTANCES / math.sqrt(dimension)


def first_count(codec: str, mode: SearchMode, top_k: int) -> int:
    """Returns how many rows a scan proposes at first: nearly always all within the margin."""
    times, more = _FIRST_COUNTS[codec]
    return min(COUNT_MAX, (times * top_k + more) * (3 if mode == "margin" else 1))


def rows_within(estimates: npt.NDArray[np.float32], top_k: int, width: float) -> tuple[int, bool]:
    """Returns how many proposed rows are within the margin, and whether too many others may be.

    `estimates`: (n,) float32, of the proposed rows, best first; `width`: the margin. The second is
    true where all proposed rows are within most of the margin: then a scan must propose more.
    """
    if len(estimates) <= top_k:
        return len(estimates), False
    best = estimates[top_k - 1]
    return int(np.count_nonzero(estimates >= best - width)), bool(
        estimates[-1] >= best - _MOST * width
    )
