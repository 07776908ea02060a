"""How long a batch of queries is searched: linear in its size and in what is scanned. Pure.

VectorLiteRAG, section 4.1, Eq. 1, 2 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from carpool.errors import RetryableError

Float64 = npt.NDArray[np.float64]

ERROR_MAX = 0.25
"""Median relative error of a fit that can still choose a hot set."""


class TimeSample(NamedTuple):
    """A batch of `batch` queries was scanned over `share` of the clusters of each, in `took_us`."""

    batch: int
    share: float
    took_us: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTimes:
    """The time of a batch: `fixed_us` + `other_us` a query + scans, in microseconds.

    All clusters of one query are scanned in `scan_us` on one thread; only this part gets shorter
    with the clusters that are scanned elsewhere. `threads` share the clusters of a batch. `error`:
    median relative error of the samples that it was fitted to.
    """

    fixed_us: float
    other_us: float
    scan_us: float
    threads: int
    error: float = 0.0


def fit_search_times(samples: Sequence[TimeSample], threads: int) -> SearchTimes:
    """Fits the line to measured samples, by least squares of the relative errors.

    No part is negative. Raises `RetryableError` where the samples do not determine it, where scans
    take no time, or where half of the samples are off by more than `ERROR_MAX`.
    """
    batches = np.array([sample.batch for sample in samples], float)
    shares = np.array([sample.share for sample in samples], float)
    took_us = np.array([sample.took_us for sample in samples], float)
    if len(set(batches)) < 2 or len(set(shares)) < 2 or not (took_us > 0).all():
        raise RetryableError(
            f"{len(samples)} samples do not say how long searches take: at least two sizes of "
            "batches and two shares of clusters are needed, and no time of 0"
        )
    terms = np.stack([np.ones_like(batches), batches, shares * batches / threads], axis=1)
    parts = _non_negative(terms / took_us[:, None])
    error = float(np.median(np.abs(terms @ parts / took_us - 1)))
    if parts[2] <= 0 or error > ERROR_MAX:
        raise RetryableError(
            f"the measured times of searches do not fit a line (median error {error:.0%}, scans "
            f"{parts[2]:.0f} us a query): the machine may be busy; measure again"
        )
    fixed_us, other_us, scan_us = parts.tolist()
    return SearchTimes(
        fixed_us=fixed_us, other_us=other_us, scan_us=scan_us, threads=threads, error=error
    )


def batch_time_us(times: SearchTimes, hit_rate: float, batch: int) -> float:
    """Returns how long a batch of `batch` queries is searched with a shard, in microseconds.

    `hit_rate`: the share of the clusters of a query that the shard has, on average.

    Deviation: Eq. 5 takes the query with the fewest hits, because in the paper each query has a
    thread. Here all threads share the clusters of the batch, so the mean query counts.
    """
    scans = batch * (1 - hit_rate) / times.threads
    return times.fixed_us + times.other_us * batch + times.scan_us * scans


def _non_negative(scaled: Float64) -> Float64:
    """The parts of least square error to 1, none negative: the best over all sets of parts."""
    best, best_error = np.zeros(3), np.inf
    for kept in ([0, 1, 2], [0, 2], [1, 2], [2], [0, 1], [0], [1]):
        parts = np.zeros(3)
        parts[kept] = np.linalg.lstsq(scaled[:, kept], np.ones(len(scaled)), rcond=None)[0]
        error = float(((scaled @ parts - 1) ** 2).sum())
        if (parts >= 0).all() and error < best_error - 1e-12:
            best, best_error = parts, error
    return best
