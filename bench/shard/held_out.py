"""Batches of questions that chose nothing: their hit rates, and how long they are searched.

The times are simulated: the scans of a batch are given to threads as `CodesExecutor` does it, and a
question takes the time of its misses.
"""

from __future__ import annotations

import numpy as np

from bench.baselines.contestant import Int64
from searcher.plan.beta_binomial import Float64
from searcher.plan.search_times import QUERIES_A_SCAN, SearchTimes

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DRAWS = 1000


class HeldOut:
    """Questions of one half, judged by the hot sets of the other half.

    The same batches are drawn for every hot set.
    """

    def __init__(self, probes: Int64, clusters: Int64, seed: int) -> None:
        """`probes`: (questions, nprobe); `clusters`: (nlist,), the hottest first."""
        places = np.empty(len(clusters), np.int64)
        places[clusters] = np.arange(len(clusters))
        self._places = places[probes]
        self._nlist = len(clusters)
        self._seed = seed

    def hit_rates(self, number: int) -> Float64:
        """Returns the hit rate of each question for the hottest `number` clusters."""
        rates: Float64 = (self._places < number).mean(axis=1)
        return rates

    def least_hit_rate(self, number: int, batch: int) -> float:
        """Returns the mean of the least hit rates of the drawn batches."""
        return float(self.hit_rates(number)[self._drawn(batch)].min(axis=1).mean())

    def strain(
        self, times: SearchTimes, number: int, *, target_us: float, queries_per_s: float
    ) -> float:
        """Returns how much of the targets the hottest `number` clusters take; at most 1: they meet.

        For a size of batch that is the larger of two shares: twice the mean time of the drawn
        batches, of `target_us` (a question waits for its batch as long as it is searched), and
        `queries_per_s`, of the questions of a batch by that time. The best size counts. A target of
        0 is none. The mean is what the model predicts; a single batch may take longer.
        """
        rates = self.hit_rates(number)
        strains = []
        for batch in BATCHES:
            misses = 1 - rates[self._drawn(batch)]
            scans_us = times.scan_us * last_scan(misses, times.threads)
            took_us = times.fixed_us + times.other_us * batch + float(scans_us.mean())
            late = 2 * took_us / target_us if target_us else 0.0
            strains.append(max(late, queries_per_s * took_us / 1e6 / batch))
        return min(strains)

    def fewest(self, times: SearchTimes, *, target_us: float, queries_per_s: float) -> int | None:
        """Returns the fewest of the hottest clusters that meet the targets; None: not even all.

        Bisects: the batches are the same, so that more clusters take less time.
        """

        def meets(number: int) -> bool:
            wanted = {"target_us": target_us, "queries_per_s": queries_per_s}
            return self.strain(times, number, **wanted) <= 1

        low, high = -1, self._nlist
        if not meets(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if meets(middle):
                high = middle
            else:
                low = middle
        return high

    def _drawn(self, batch: int) -> Int64:
        random = np.random.default_rng([self._seed, batch])
        return random.integers(len(self._places), size=(DRAWS, batch))


def last_scan(misses: Float64, threads: int) -> Float64:
    """Returns when the last question of each batch is scanned, one after the other by each thread.

    `misses`: (batches, questions), how long each is scanned. Threads that are free at once share
    the questions; later each takes the next ones, at most `QUERIES_A_SCAN`. Returns (batches,).
    """
    count = misses.shape[1]
    ends = np.zeros((len(misses), threads))
    taken = 0
    for number in range(count):
        free = threads - number if number < threads else 1
        share = min(-(-(count - taken) // free), QUERIES_A_SCAN)
        if not share:
            break
        thread = ends.argmin(axis=1)
        ends[np.arange(len(misses)), thread] += misses[:, taken : taken + share].sum(axis=1)
        taken += share
    latest: Float64 = ends.max(axis=1)
    return latest
