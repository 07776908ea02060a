"""Measures how long codes are scanned for batches of queries, in the threads of a searcher."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from types import TracebackType
from typing import Self

import faiss
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from carpool.clock import Clock
from carpool.codes.faiss_codes import CodeScanner
from carpool.codes.margin import first_count
from searcher.plan.search_times import QUERIES_A_SCAN, TimeSample

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

BATCHES = (1, 2, 4, 8, 16, 32, 64)
SHARES = (1.0, 0.5, 0.25, 0.1)
"""Shares of the clusters of each query that are scanned."""
QUERIES_A_ROUND = 16
"""For each sample, at least. Queries differ in how many rows their clusters have."""
TOP_K = 10


class BatchScans:
    """Scans batches of queries as `CodesExecutor` does, on threads of its own.

    Sets BLAS to one thread in the whole process while it is open, as searchers do.
    """

    def __init__(self, scanner: CodeScanner, codec: str, clock: Clock, threads: int = 0) -> None:
        """`scanner`: with codes of `codec` in memory; `threads`: 0 for one a core."""
        self.threads = threads or len(os.sched_getaffinity(0))
        self._scanner = scanner
        self._count = first_count(codec, "default", TOP_K)
        self._clock = clock
        self._pool = ThreadPoolExecutor(
            self.threads, "measure", initializer=partial(faiss.omp_set_num_threads, 1)
        )

    def __enter__(self) -> Self:
        """Itself."""
        self._blas = threadpool_limits(limits=1, user_api="blas")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._blas.restore_original_limits()

    def time_us(self, queries: Float32, probes: Sequence[Int64]) -> int:
        """Returns the time until the last query of a batch is scanned; 0 if there is no cluster.

        `queries`: (n, dim) float32; `probes`: n arrays of clusters. Blocks.
        """
        left = [number for number, one in enumerate(probes) if len(one)]
        running: set[Future[object]] = set()
        began_us = self._clock.now_us()
        while left or running:
            while left and len(running) < self.threads:
                share = -(-len(left) // (self.threads - len(running)))
                taken = left[: min(share, QUERIES_A_SCAN)]
                del left[: len(taken)]
                clusters = [probes[number] for number in taken]
                scan = self._scanner.scan
                running.add(self._pool.submit(scan, queries[taken], clusters, self._count))
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for one in ended:
                one.result()
        return self._clock.now_us() - began_us


class TimeRounds:
    """Rounds of batches of every size and share of clusters, each of other queries and clusters.

    The clusters of the last batch are in the caches of the CPU, so that no batch is scanned twice.
    A seeded generator takes queries and clusters.
    """

    def __init__(self, scans: BatchScans, queries: Float32, probes: Sequence[Int64]) -> None:
        """`queries`: (n, dim) float32; `probes`: the clusters of each."""
        self._scans = scans
        self._queries = queries
        self._probes = probes
        self._random = np.random.default_rng(0)
        cells = [(size, share) for size in BATCHES for share in SHARES]
        self._batches: dict[tuple[int, float], list[TimeSample]] = {cell: [] for cell in cells}
        self._order = [cell for cell in cells for _ in range(max(1, QUERIES_A_ROUND // cell[0]))]

    def scan(self) -> None:
        """Scans a round, in a random order: some 300 scans of a query. Blocks."""
        for at in self._random.permutation(len(self._order)).tolist():
            size, share = self._order[at]
            chosen = self._random.integers(len(self._queries), size=size).tolist()
            some = [self._some(self._probes[one], share) for one in chosen]
            took_us = self._scans.time_us(self._queries[chosen], some)
            scanned = sum(map(len, some)) / sum(len(self._probes[one]) for one in chosen)
            self._batches[size, share].append(TimeSample(size, scanned, took_us))

    def samples(self) -> list[TimeSample]:
        """Returns a sample for each size and share: the median time of its batches.

        Other work on the same cores makes the times longer, as it makes searches.
        """
        return [
            TimeSample(
                size,
                float(np.mean([one.share for one in batches])),
                float(np.median([one.took_us for one in batches])),
            )
            for (size, _), batches in self._batches.items()
        ]

    def _some(self, clusters: Int64, share: float) -> Int64:
        """A share of the clusters of a query, at least one, in their order."""
        count = max(1, round(share * len(clusters)))
        return clusters[np.sort(self._random.permutation(len(clusters))[:count])]
