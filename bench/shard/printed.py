"""Equations 4 and 5 of VectorLiteRAG as they are printed, to compare with."""

from __future__ import annotations

import numpy as np

from searcher.plan.beta_binomial import BetaBinomial, Float64
from searcher.plan.search_times import SearchTimes


def least_hit_rate_eq4(hits: BetaBinomial, batch: int) -> float:
    """Returns the expected least hit rate of Eq. 4: the sum of k B P(k) P(hits > k)^(B-1).

    It leaves out the batches in which two queries share the fewest hits.
    """
    chances = hits.distribution()
    above = np.clip(1 - np.cumsum(chances), 0, 1)
    terms = np.arange(len(chances)) * batch * chances * above ** (batch - 1)
    return float(terms.sum()) / hits.nprobe


def batch_time_eq5(times: SearchTimes, batch: int, hit_rate: float | Float64) -> Float64:
    """Returns the time of Eq. 5, in microseconds: of all scans of the batch, (1 - hit rate).

    `hit_rate`: the least of the batch, in the paper. It has no threads; all scans of a batch take
    what they were measured to take.
    """
    scans_us = times.scan_us * max(1.0, batch / times.threads)
    took_us: Float64 = np.asarray(
        times.fixed_us + times.other_us * batch + (1 - hit_rate) * scans_us
    )
    return took_us
