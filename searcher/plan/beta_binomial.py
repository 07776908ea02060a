"""How many clusters of a query are in a hot set: a Beta-binomial distribution. Pure.

VectorLiteRAG, section 4.1: the hit rate differs from query to query, so hits are not binomial. The
distribution is described by its mean and by its correlation, 1 / (alpha + beta + 1): that of two
probes of one query. 0: binomial. 1: a query hits all of its clusters or none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_CORRELATION_MAX = 1 - 1e-9
"""At 1, both Beta parameters would be 0."""


def correlations(means: Float64, variances: Float64, nprobe: float) -> Float64:
    """Returns the correlations by the method of moments, from 0 to 1; shape as `means`.

    `means`, `variances`: of the hit rates of queries with `nprobe` clusters. The variance of a
    Beta-binomial hit rate is m (1 - m) (1 + (nprobe - 1) correlation) / nprobe. Where all queries
    have the same hit rate, or `nprobe` is 1, the correlation is 0.
    """
    binomial = means * (1 - means) / nprobe
    excess = np.divide(variances, binomial, out=np.ones_like(means), where=binomial > 0) - 1
    return np.clip(excess / max(nprobe - 1, 1), 0, 1) if nprobe > 1 else np.zeros_like(means)


def distribution(means: Float64, correlation: Float64, nprobe: int) -> Float64:
    """Returns the probability of k hits of `nprobe`: (n, nprobe + 1), each row adds up to 1.

    `means`, `correlation`: (n,), each from 0 to 1.
    """
    share = np.minimum(correlation, _CORRELATION_MAX)[:, None]
    drawn = np.arange(nprobe) * share  # alpha + i is (mean (1 - share) + i share) / share
    with np.errstate(divide="ignore"):
        hits = np.log(means[:, None] * (1 - share) + drawn)
        misses = np.log((1 - means[:, None]) * (1 - share) + drawn)
        of_all = np.log((1 - share) + drawn)
    numbers = np.log(np.arange(1, nprobe + 1))
    factorials = np.concatenate([[0.0], np.cumsum(numbers)])
    ways = factorials[-1] - factorials - factorials[::-1]
    logs = ways + _sums(hits) + _sums(misses)[:, ::-1] - of_all.sum(axis=1, keepdims=True)
    chances: Float64 = np.exp(logs)
    return chances


def least_hit_rates(means: Float64, correlation: Float64, nprobe: int, batch_max: int) -> Float64:
    """Returns the expected hit rate of the query with the fewest hits: (n, batch_max).

    Column B - 1: of B queries that are drawn independently. It is the exact expectation of the
    least of B draws, the sum over k of P(hits >= k)^B. Eq. 4 of the paper multiplies B P(k) with
    P(hits > k)^(B-1), which counts no batch where two queries share the fewest hits. `means`,
    `correlation`: (n,), each from 0 to 1.
    """
    chances = distribution(means, correlation, nprobe)
    at_least = np.cumsum(chances[:, :0:-1], axis=1)  # of nprobe hits, then of one less, and so on
    least = np.empty((len(means), batch_max))
    all_at_least = np.ones_like(at_least)
    for batch in range(batch_max):
        all_at_least *= at_least
        least[:, batch] = all_at_least.sum(axis=1)
    return np.minimum(least / nprobe, 1.0)


def expected_least_hit_rate(mean: float, correlation: float, nprobe: int, batch: int) -> float:
    """Returns the expected least hit rate of one distribution; see `least_hit_rates`."""
    rates = least_hit_rates(np.array([mean]), np.array([correlation]), nprobe, batch)
    return float(rates[0, -1])


def _sums(logs: Float64) -> Float64:
    """The sums of the first 0, 1, ... numbers of each row."""
    return np.concatenate([np.zeros((len(logs), 1)), np.cumsum(logs, axis=1)], axis=1)
