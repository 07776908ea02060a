"""Batches of questions that chose nothing: their hit rates, and how long they are searched.

The times are simulated: the scans of a batch are given to threads as `CodesExecutor` does it, and a
question takes the time of its misses.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from searcher.plan.beta_binomial import Float64
from searcher.plan.search_times import QUERIES_A_SCAN, SearchTimes

Int64 = npt.NDArray[np.int64]

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

    def meets(
        self, times: SearchTimes, clusters: int, *, target_us: float, queries_per_s: float
    ) -> bool:
        """Returns whether the hottest `clusters` meet the targets, with the best size of batch.

        Twice the mean time of the drawn batches is within `target_us`, because a question waits for
        its batch as long as it is searched. A target of 0 is none.
        """
        misses_of = (self._places >= clusters).mean(axis=1)
        for batch in BATCHES:
            random = np.random.default_rng([self._seed, batch])
            misses = misses_of[random.integers(len(misses_of), size=(DRAWS, batch))]
            scans_us = times.scan_us * float(last_scan(misses, times.threads).mean())
            took_us = times.fixed_us + times.other_us * batch + scans_us
            is_soon = not target_us or 2 * took_us <= target_us
            if is_soon and batch * 1e6 / took_us >= queries_per_s:
                return True
        return False

    def fewest(self, times: SearchTimes, *, target_us: float, queries_per_s: float) -> int:
        """Returns the fewest of the hottest clusters that meet the targets; all where none do.

        Bisects: the batches are the same, so that more clusters take less time.
        """
        target = {"target_us": target_us, "queries_per_s": queries_per_s}
        return bisect_left(
            range(self._nlist), True, key=lambda clusters: self.meets(times, clusters, **target)
        )


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
