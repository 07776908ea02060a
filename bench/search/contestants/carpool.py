"""Carpool's search plane without Kafka, as the searcher opens it."""

from __future__ import annotations

import subprocess
import sys
import threading
from queue import SimpleQueue

import msgspec
import numpy as np
import psutil
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.search.contestants import contestant as seam
from bench.search.contestants.contestant import Contestant, SearchData
from carpool.arrays import Float32, Int64
from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.disk.document_rows import read_document_rows
from carpool.disk.index import OpenIndex, open_index
from carpool.errors import RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.query import SearchMode
from schemas.record import ClusterId
from searcher.build import open_search_plane
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.local import SearchThread
from searcher.open_exact import open_exact_plane
from searcher.plan.gpu_blocks import gpu_bytes_for
from searcher.plan.hot_swaps import CHOICES
from searcher.settings import SearcherSettings

Answers = SimpleQueue[tuple[int, SearchResult | None]]

INDEX_NAME = "index"
BUFFERS_BYTES = 64 << 20
"""Buffers of rows in flight, and the least memory of exact searches, with some to spare."""
GROWTH_BYTES = 12 << 20
"""How much the process may grow outside the budget after `open`: scores, results, stacks."""
SHARD_WINDOW = 64
READ_TIMEOUT_MS = 60_000
"""A read that is late because the machine pauses is reported as latency, and skips no cluster."""


def budget_for(memory_bytes: int | None, size_bytes: int) -> int:
    """Returns the searcher's budget: what the process as it is now leaves of `memory_bytes`.

    At most enough for all clusters, of `size_bytes`, and buffers. Raises `MemoryError` where
    nothing is left.
    """
    budget_bytes = 2 * size_bytes + BUFFERS_BYTES
    if memory_bytes is not None:
        left_bytes = memory_bytes - psutil.Process().memory_info().rss - GROWTH_BYTES
        budget_bytes = min(budget_bytes, left_bytes)
    if budget_bytes <= 0:
        raise MemoryError(
            f"{memory_bytes} bytes cannot hold a cluster, interpreter and libraries; raise --memory"
        )
    return budget_bytes


class Carpool(Contestant):
    """Searches in one mode; each window is joined as one group.

    `exact` reads whole clusters. `shard_share`: the rows of a hot shard, as a share of the index's;
    it is filled with what the tuning questions probe.
    """

    def __init__(self, mode: SearchMode, shard_share: float = 0.0) -> None:
        self._mode = mode
        self._shard_share = shard_share
        self._lock = threading.Lock()
        self._next_key = 0
        self._waiting: dict[int, tuple[int, Answers]] = {}
        self._thread: SearchThread | None = None
        self.metrics = Metrics()

    def build(self, data: SearchData) -> None:
        """Builds an index by the command's defaults, unless there is one."""
        if data.index is None:
            command = [sys.executable, "-m", "carpool", "index", "build", str(data.corpus)]
            command += ["--vectors", str(data.vectors), "--fingerprint", "0123abcd"]
            subprocess.run([*command, "--out", str(data.prepared / INDEX_NAME)], check=True)

    def open(self, data: SearchData) -> None:
        """Opens the index in the memory of `budget_for`; reads codes, and the hot shard."""
        threadpool_limits(limits=1, user_api="blas")
        index = self._index = open_index(data.index or data.prepared / INDEX_NAME)
        index.close()  # no documents are read
        size_bytes = sum(extent.size_bytes for extent in index.extents)
        self._documents = read_document_rows(index.dir, index.manifest, index.extents)
        settings = SearcherSettings(
            budget_bytes=budget_for(data.memory_bytes, size_bytes),
            scoring_threads=seam.THREADS,
            read_timeout_ms=READ_TIMEOUT_MS,
        )
        self.settings = seam.ladder(1, index.manifest.nlist)
        if self._shard_share:
            settings = self._with_shard(index, settings)
        is_exact = self._mode == "exact"
        open_plane = open_exact_plane if is_exact else open_search_plane
        self._thread = SearchThread(open_plane(index, settings, self.metrics, SystemClock()))
        if self._shard_share:
            self._fill_shard(data)

    def search(self, queries: Float32, setting: int) -> Int64:
        """Probes `setting` clusters a query and joins the window as one group.

        Each call takes as many results as it has queries, and passes those of another call to it.
        """
        assert self._thread is not None
        probes = probe(self._index.centroids, queries, setting)
        answers: Answers = SimpleQueue()
        with self._lock:
            first, self._next_key = self._next_key, self._next_key + len(queries)
            keys = range(first, self._next_key)
            self._waiting |= {key: (at, answers) for at, key in enumerate(keys)}
            searches = tuple(
                Search(
                    key=key,
                    vector=queries[at],
                    clusters=tuple(map(ClusterId, probes[at].tolist())),
                    top_k=seam.TOP_K,
                    mode=self._mode,
                )
                for at, key in enumerate(keys)
            )
            self._thread.join(SearchGroup(searches=searches, window=self._next_key))
        for _ in searches:
            search, result = self._thread.take()
            at, owner = self._waiting.pop(search.key)
            owner.put((at, result))
        found = np.full((len(queries), seam.TOP_K), -1, np.int64)
        for _ in searches:
            at, result = answers.get()
            if result is None or result.skipped:
                raise RetryableError(f"clusters were skipped: {result and result.errors}")
            rows = self._documents[result.best.rows]
            found[at, : len(rows)] = rows
        return found

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()

    def _with_shard(self, index: OpenIndex, settings: SearcherSettings) -> SearcherSettings:
        nlist, dimension = index.centroids.shape
        number_bytes = 2 if self._shard_share > 1 else 1  # as the searcher stores all, or some rows
        rows_bytes = int(self._shard_share * index.manifest.row_count * dimension * number_bytes)
        return msgspec.structs.replace(settings, shard_bytes=gpu_bytes_for(rows_bytes, nlist))

    def _fill_shard(self, data: SearchData) -> None:
        """Asks the tuning questions until they have filled the shard, and no cluster enters."""
        value = self.metrics.registry.get_sample_value
        asked, before, loaded = 0, -1.0, 0.0
        while asked < CHOICES[-1] or before != loaded:
            first, before = asked % max(1, len(data.tuning) - SHARD_WINDOW), loaded
            some = data.tuning[first : first + SHARD_WINDOW]
            asked += len(self.search(some, self._index.manifest.nprobe_default))
            loaded = value("carpool_shard_swaps_total", {"result": "loaded"}) or 0.0
