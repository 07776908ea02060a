"""Equations 4 and 5 of VectorLiteRAG as they are printed, and the choice that they make."""

from __future__ import annotations

from bisect import bisect_left

from bench.papers.vectorlite.beta_binomial import BetaBinomial, hits_of
from searcher.plan.hot_set import BATCH_MAX, NestedHotSets
from searcher.plan.search_times import SearchTimes


def least_hit_rate_eq4(hits: BetaBinomial, batch: int) -> float:
    """Returns the expected least hit rate of Eq. 4: the sum of k B P(k) P(hits > k)^(B-1).

    It leaves out the batches in which two queries share the fewest hits.
    """
    chances = hits.distribution()
    left, total = 1.0, 0.0
    for count, chance in enumerate(chances.tolist()):
        left = max(0.0, left - chance)
        total += count * batch * chance * left ** (batch - 1)
    return total / hits.nprobe


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

    def meets(clusters: int, batch: int) -> bool:
        least = least_hit_rate_eq4(hits_of(sets, clusters), batch)
        took_us = batch_time_eq5(times, batch, least)
        is_soon = not target_us or 2 * took_us <= target_us  # Eq. 9
        return is_soon and batch * 1e6 / took_us >= queries_per_s  # Eq. 6 and 7

    return bisect_left(
        range(len(sets.clusters)),
        True,
        key=lambda clusters: any(meets(clusters, batch) for batch in range(1, BATCH_MAX + 1)),
    )
