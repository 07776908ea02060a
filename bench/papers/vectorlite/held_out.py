"""Batches of questions that chose nothing: their hit rates, and how long they are searched.

The times are of the mean batch: threads share the scans, and a question takes the time of its
misses.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from searcher.plan.search_times import SearchTimes

Int64 = npt.NDArray[np.int64]

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class HeldOut:
    """Questions of one half, judged by the hot sets of the other half."""

    def __init__(self, probes: Int64, clusters: Int64) -> None:
        """`probes`: (questions, nprobe); `clusters`: (nlist,), the hottest first."""
        places = np.empty(len(clusters), np.int64)
        places[clusters] = np.arange(len(clusters))
        self._places = places[probes]
        self._nlist = len(clusters)

    def meets(
        self, times: SearchTimes, clusters: int, *, target_us: float, queries_per_s: float
    ) -> bool:
        """Returns whether the hottest `clusters` meet the targets, with the best size of batch.

        Twice the time of a batch is within `target_us`, because a question waits for
        its batch as long as it is searched. A target of 0 is none.
        """
        misses = float((self._places >= clusters).mean())
        for batch in BATCHES:
            scans_us = times.scan_us * batch * misses / times.threads
            took_us = times.fixed_us + times.other_us * batch + scans_us
            is_soon = not target_us or 2 * took_us <= target_us
            if is_soon and batch * 1e6 / took_us >= queries_per_s:
                return True
        return False

    def fewest(self, times: SearchTimes, *, target_us: float, queries_per_s: float) -> int:
        """Returns the fewest of the hottest clusters that meet the targets; all where none do.

        Bisects: more clusters take less time.
        """
        target = {"target_us": target_us, "queries_per_s": queries_per_s}
        return bisect_left(
            range(self._nlist), True, key=lambda clusters: self.meets(times, clusters, **target)
        )
