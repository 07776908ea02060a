"""The time of searches beside a shard, query by query: real probes, and costs that are stated."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from searcher.plan.search_times import QUERIES_A_SCAN

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SearchCosts:
    """What a batch of searches takes. `scan_ns`: a row of codes, on one of `threads` threads.

    `query_us`: of a query beside its scans, on one thread. `launch_us`: of a scan on the GPU, which
    reads `gpu_bytes_per_s`. `row_bytes`: of a row in the shard.
    """

    threads: int
    scan_ns: float
    query_us: float
    launch_us: float
    gpu_bytes_per_s: float
    row_bytes: int


class ShardedSearch:
    """A searcher with a shard. It is finer than the model that chooses the shard: each query has
    its own hits and misses, clusters have their own sizes, and a thread that is free takes as many
    queries as `CodesExecutor` gives it.
    """

    def __init__(self, costs: SearchCosts, rows: Int64, hot: npt.NDArray[np.bool_]) -> None:
        """`rows`: (nlist,) int64, of each cluster; `hot`: (nlist,) bool, which are in the shard."""
        self._costs = costs
        self._hits = np.where(hot, rows, 0)
        self._misses = np.where(hot, 0, rows)

    def batch_us(self, probes: Sequence[Int64]) -> float:
        """Returns the time of a batch. `probes`: the clusters of each query.

        The GPU works beside the threads, so the slower side decides.
        """
        costs = self._costs
        own_us = [
            costs.query_us + float(self._misses[clusters].sum()) * costs.scan_ns / 1_000
            for clusters in probes
        ]
        ends_us: list[float] = []
        now_us, at = 0.0, 0
        while at < len(own_us):
            if len(ends_us) == costs.threads:
                now_us = heapq.heappop(ends_us)
            share = -(-(len(own_us) - at) // (costs.threads - len(ends_us)))
            count = min(share, QUERIES_A_SCAN)
            heapq.heappush(ends_us, now_us + sum(own_us[at : at + count]))
            at += count
        hits = sum(int(self._hits[clusters].sum()) for clusters in probes)
        gpu_us = 0.0
        if hits:
            gpu_us = costs.launch_us + 1e6 * hits * costs.row_bytes / costs.gpu_bytes_per_s
        return max(*ends_us, gpu_us)
