"""Measures how long codes in memory are scanned for batches of queries."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from carpool.arrays import Float32, Int64
from carpool.clock import Clock
from carpool.codes.codec import CODEC
from carpool.codes.margin import first_count
from carpool.disk.index import OpenCodes, OpenIndex
from searcher.codes.load import load_codes
from searcher.plan.search_times import TimeSample
from searcher.settings import SearcherSettings

BATCHES = (1, 2, 4, 8, 16, 32, 64)
SHARES = (1.0, 0.5, 0.25, 0.1)
"""Shares of the clusters of each query that are scanned."""
QUERIES_A_ROUND = 16
"""For each sample, at least. Queries differ in how many rows their clusters have."""
COUNT = first_count(CODEC, 10)
"""Rows that a scan proposes."""


class BatchScans:
    """Scans batches of queries over codes in memory, and reads no rows."""

    def __init__(
        self, index: OpenIndex, codes: OpenCodes, settings: SearcherSettings, clock: Clock
    ) -> None:
        """Loads all of `codes`. Blocks."""
        self.threads = settings.threads
        as_can_be = msgspec.structs.replace(settings, direct_io="auto")
        loaded = load_codes(codes, index.scan_centroids, as_can_be)
        self._scanner = loaded.scanner
        self._clock = clock

    def time_us(self, queries: Float32, probes: Sequence[Int64]) -> int:
        """Returns the time until the last query of a batch is scanned; 0 if there is no cluster.

        `queries`: (n, dim) float32; `probes`: n arrays of clusters. Blocks.
        """
        if not any(map(len, probes)):
            return 0
        began_us = self._clock.now_us()
        self._scanner.add(self._scanner.begin(queries, COUNT), probes)
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
