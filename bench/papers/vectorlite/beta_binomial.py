"""How many clusters of a query are in a hot set: a Beta-binomial distribution. Pure.

VectorLiteRAG, section 4.1: the hit rate differs from query to query, so hits are not binomial.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searcher.plan.hot_set import NestedHotSets

Float64 = npt.NDArray[np.float64]

_CORRELATION_MAX = 1 - 1e-9
"""At 1, both Beta parameters would be 0."""


@dataclass(frozen=True, slots=True)
class BetaBinomial:
    """Hits of `nprobe` probes: their mean rate, and the correlation of two probes of one query.

    The correlation is 1 / (alpha + beta + 1). 0: binomial. 1: all probes hit, or none.
    """

    mean: float
    correlation: float
    nprobe: int

    def distribution(self) -> Float64:
        """Returns the probability of 0, 1, ... nprobe hits: (nprobe + 1,), together 1."""
        share = min(self.correlation, _CORRELATION_MAX)
        drawn = np.arange(self.nprobe) * share
        # alpha + i is (mean (1 - share) + i share) / share, and so on: the share is left out.
        with np.errstate(divide="ignore"):
            hits = _sums(np.log(self.mean * (1 - share) + drawn))
            misses = _sums(np.log((1 - self.mean) * (1 - share) + drawn))
            of_all = np.log((1 - share) + drawn).sum()
        factorials = _sums(np.log(np.arange(1, self.nprobe + 1)))
        ways = factorials[-1] - factorials - factorials[::-1]
        chances: Float64 = np.exp(ways + hits + misses[::-1] - of_all)
        return chances

    def expected_least(self, batch: int) -> float:
        """Returns the expected hit rate of the query with the fewest hits of `batch` queries.

        It is the exact expectation of the least of independent draws: the sum over k of
        P(hits >= k)^B. Eq. 4 of the paper multiplies B P(k) with P(hits > k)^(B-1), which leaves
        out the batches in which two queries share the fewest hits.
        """
        at_least = np.cumsum(self.distribution()[:0:-1])  # nprobe hits, then one less, and so on
        return min(1.0, float((at_least**batch).sum()) / self.nprobe)


def hits_of(sets: NestedHotSets, number: int) -> BetaBinomial:
    """Returns the hits of a query, of the hottest `number` clusters."""
    mean, variance = float(sets.means[number]), float(sets.variances[number])
    return BetaBinomial(mean, correlation(mean, variance, sets.nprobe), sets.nprobe)


def correlation(mean: float, variance: float, nprobe: int) -> float:
    """Returns the correlation by the method of moments, from 0 to 1.

    `mean`, `variance`: of the hit rates of queries with `nprobe` clusters. The variance of a
    Beta-binomial hit rate is m (1 - m) (1 + (nprobe - 1) correlation) / nprobe. Where all queries
    have the same hit rate, or `nprobe` is 1, the correlation is 0.
    """
    binomial = mean * (1 - mean) / nprobe
    if nprobe == 1 or binomial <= 0:
        return 0.0
    return min(1.0, max(0.0, (variance / binomial - 1) / (nprobe - 1)))


def _sums(logs: Float64) -> Float64:
    """The sums of the first 0, 1, ... numbers."""
    return np.concatenate([[0.0], np.cumsum(logs)])
