"""How many rows are read for a query, after its codes were scanned. Pure.

Codes give estimates of scores. A row may be among the best `top_k` if its estimate is at most a
margin below that of the `top_k`-th estimate. The margin is a multiple of the standard deviation of
an estimate's error, which is normally distributed and proportional to 1 / sqrt(dimension):

- `int4`: it is proportional to the distance of the row from its centroid, too, which is at most
  about 1. Measured with 3,000 questions over the embeddings of 16,000 passages of Wikipedia: 0.102
  to 0.125, the largest where the passages are in 4 clusters.
- `sq8`, of a hot shard: each number is wrong by at most half a step of its range, all errors
  equally likely, so the deviation is a step / sqrt(12) times the length of the query, which is 1.
  That is 0.0136, and so much was measured with the same questions.
- `float16`, of a hot shard: each number of the row is wrong by at most 2^-11 of itself; on a GPU
  each number of the query, too. All errors in one direction would make 9.8e-4. Measured over 48
  million pairs of question and passage, both rounded: a deviation of 1.5e-5, which is 3.0e-4 /
  sqrt(384), and no error above 9.2e-5. The constant is twice that, so that both margins are larger
  than every error that was measured.
"""

from __future__ import annotations

import math

import numpy as np

from carpool.arrays import Float32
from schemas.query import SearchMode

EXPECTED_RECALL: dict[SearchMode, float] = {"default": 0.998, "exact": 1.0}
"""The least share of ids that are those of an exact search of the same clusters."""
COUNT_MAX = 2048
"""Rows that are read for a query at most."""

SQ8_REACH = 6.0
"""The largest number that a code of `sq8` can stand for, times sqrt(dimension).

The numbers of a normalised vector, rotated at random, are about normally distributed with deviation
1 / sqrt(dimension): one in 500 million is larger, and it is clipped.
"""
_ERRORS = {"float16": 6e-4, "sq8": 2 * SQ8_REACH / 255 / math.sqrt(12), "int4": 0.12}
"""Standard deviation of an error, times sqrt(dimension)."""
DEVIATIONS = 2.8
"""Of a million rows, 5 of 27,000 ids are missed (docs/benchmarks.md)."""
_MOST = 0.6
"""Share of the margin that the first scan must cover. Few of the best rows are farther away."""
_FIRST_COUNTS = {"float16": (1, 5), "sq8": (2, 5), "int4": (2, 5)}
"""Rows to propose at first: so many times `top_k`, and so many more."""


def margin(codec: str, dimension: int) -> float:
    """Returns the margin of estimates. `codec`: `int4`, `sq8` or `float16`."""
    return DEVIATIONS * _ERRORS[codec] / math.sqrt(dimension)


def first_count(codec: str, top_k: int) -> int:
    """Returns how many rows a scan proposes at first: nearly always all within the margin."""
    times, more = _FIRST_COUNTS[codec]
    return min(COUNT_MAX, times * top_k + more)


def rows_within(estimates: Float32, top_k: int, width: float) -> tuple[int, bool]:
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
