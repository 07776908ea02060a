"""Equations 3 to 5 of VectorLiteRAG as they are printed, and the choice that they make. Pure.

Section 4.1: the hit rate differs from query to query, so hits are not binomial, but Beta-binomial.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from searcher.plan.hot_set import BATCH_MAX, NestedHotSets
from searcher.plan.search_times import SearchTimes

Float64 = npt.NDArray[np.float64]

_TINY = 1e-9
"""Means and correlations are at least so far from 0 and 1, where the Beta distribution is none."""


def hit_chances(mean: float, correlation: float, nprobe: int) -> Float64:
    """Returns the probability of 0, 1, ... nprobe hits: (nprobe + 1,), together 1.

    `mean` is the hit rate. `correlation` is that of two probes of one query, 1 / (alpha + beta +
    1); 0: binomial, 1: all probes hit, or none.
    """
    share = min(correlation, 1 - _TINY)
    rate = min(max(mean, _TINY), 1 - _TINY) * (1 - share)
    hits = np.arange(nprobe)
    misses = nprobe - 1 - hits
    # P(k + 1) / P(k) = (nprobe - k) / (k + 1) * (alpha + k) / (beta + nprobe - k - 1)
    ratios = (misses + 1) / (hits + 1) * (rate + hits * share) / (1 - share - rate + misses * share)
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    weights = np.exp(logs - logs.max())
    chances: Float64 = weights / weights.sum()
    return chances


def correlation_of(mean: float, variance: float, nprobe: int) -> float:
    """Returns the correlation by the method of moments, from 0 to 1.

    `mean` and `variance` are those of the hit rates of queries with `nprobe` clusters. The variance
    of a Beta-binomial hit rate is m (1 - m) (1 + (nprobe - 1) correlation) / nprobe. Where all
    queries have the same hit rate, or `nprobe` is 1, the correlation is 0.
    """
    binomial = mean * (1 - mean) / nprobe
    if nprobe == 1 or binomial <= 0:
        return 0.0
    return min(1.0, max(0.0, (variance / binomial - 1) / (nprobe - 1)))


def least_hit_rate_eq4(chances: Float64, batch: int) -> float:
    """Returns the expected least hit rate of Eq. 4: the sum of k B P(k) P(hits > k)^(B-1).

    `chances`: of `hit_chances`. Eq. 4 leaves out the batches in which two queries share the fewest
    hits.
    """
    hits = np.arange(len(chances))
    above = np.maximum(0.0, 1 - np.cumsum(chances))
    return float((hits * batch * chances * above ** (batch - 1)).sum() / hits[-1])


def batch_time_eq5(times: SearchTimes, batch: int, hit_rate: float) -> float:
    """Returns the time of Eq. 5, in microseconds: of all scans of the batch, (1 - hit rate).

    `hit_rate`: the least of the batch, in the paper. It has no threads; all scans of a batch take
    what they were measured to take.
    """
    scans_us = times.scan_us * batch / times.threads
    return times.fixed_us + times.other_us * batch + (1 - hit_rate) * scans_us


def clusters_as_printed(
    sets: NestedHotSets, times: SearchTimes, *, target_us: float, queries_per_s: float
) -> int:
    """Returns how many clusters Eq. 3 to 10 choose: the fewest that meet the targets."""

    def meets(clusters: int) -> bool:
        mean, variance = float(sets.means[clusters]), float(sets.variances[clusters])
        correlation = correlation_of(mean, variance, sets.nprobe)
        chances = hit_chances(mean, correlation, sets.nprobe)
        for batch in range(1, BATCH_MAX + 1):
            took_us = batch_time_eq5(times, batch, least_hit_rate_eq4(chances, batch))
            is_soon = not target_us or 2 * took_us <= target_us  # Eq. 9
            if is_soon and batch * 1e6 / took_us >= queries_per_s:  # Eq. 6 and 7
                return True
        return False

    return bisect_left(range(len(sets.clusters)), True, key=meets)
