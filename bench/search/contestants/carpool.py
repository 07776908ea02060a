"""Carpool's search plane without Kafka, as the searcher opens it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import faiss  # noqa: F401  # takes 30 MB, which `budget_for` must see
import msgspec
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.memory import memory_of
from bench.data.clusters import clusters_bytes, open_clusters
from bench.search.contestants.contestant import (
    THREADS,
    AskedWindow,
    ContestantError,
    FoundRows,
    SearchData,
)
from carpool.clock import SystemClock
from carpool.disk.index import OpenIndex
from carpool.telemetry.metrics import Metrics
from schemas.query import SearchMode
from schemas.record import ClusterId
from searcher.build import BothPlanes, SearchPlane, open_search_plane
from searcher.executor import Search, SearchGroup
from searcher.local import SearchThread
from searcher.open_exact import open_exact_plane
from searcher.plan.gpu_blocks import gpu_bytes_for
from searcher.plan.hot_swaps import CHOICES
from searcher.settings import SearcherSettings

BUFFERS_BYTES = 64 << 20
"""Buffers of rows in flight, and the least memory of exact searches, with some to spare."""
GROWTH_BYTES = 12 << 20
"""How much the process may grow outside the budget after `open`: scores, results, stacks."""
MODES: dict[str, SearchMode] = {"carpool-margin": "margin", "carpool-exact": "exact"}
SHARD_WINDOW = 64
SHARD_SHARES = {"5": 0.05, "10": 0.1, "20": 0.2, "all": 1.5}
"""Rows of a hot shard, as a share of all rows. All clusters need more than 1, because the blocks of
the GPU's memory are partly empty.
"""
READ_TIMEOUT_MS = 60_000
"""A read that is late because the machine pauses is reported as latency, and skips no cluster."""


def make(name: str) -> Carpool:
    """Returns a contestant."""
    return Carpool(MODES.get(name, "default"), SHARD_SHARES.get(name.rpartition("-")[2], 0.0))


def budget_for(memory_bytes: int | None, size_bytes: int) -> int:
    """Returns the searcher's budget: what `memory_bytes` leave beside the process as it is now.

    At most enough for all clusters, of `size_bytes`, and buffers. Raises `MemoryError` where
    nothing is left.
    """
    budget_bytes = 2 * size_bytes + BUFFERS_BYTES
    if memory_bytes is not None:
        left_bytes = memory_bytes - memory_of(os.getpid()).resident_bytes - GROWTH_BYTES
        budget_bytes = min(budget_bytes, left_bytes)
    if budget_bytes <= 0:
        raise MemoryError(
            f"{memory_bytes} bytes hold no cluster beside interpreter and libraries; raise --memory"
        )
    return budget_bytes


class Carpool:
    """Searches in one mode; each window is joined as one group, with the next windows.

    `exact` reads whole clusters, the other modes scan codes. `shard_share`: the rows of a hot
    shard, as a share of the index's; it is filled with what the earlier questions probe.
    """

    def __init__(self, mode: SearchMode, shard_share: float = 0.0) -> None:
        self._mode = mode
        self._shard_share = shard_share
        self._top_k = 0
        self._next_key = 0
        self._thread: SearchThread | None = None
        self.metrics = Metrics()

    def open(self, data: SearchData) -> None:
        """Opens the index in the memory of `budget_for`; reads codes, and the hot shard."""
        threadpool_limits(limits=1, user_api="blas")
        index = open_clusters(data.index_dir)
        settings = SearcherSettings(
            budget_bytes=budget_for(data.memory_bytes, clusters_bytes(index)),
            scoring_threads=THREADS,
            read_timeout_ms=READ_TIMEOUT_MS,
        )
        self._top_k = data.top_k
        if self._shard_share:
            settings = self._with_shard(index, settings)
        self._thread = SearchThread(self._plane(index, settings))
        if self._shard_share:
            self._fill_shard(data)

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Joins the window and yields each result as it is finished."""
        assert self._thread is not None
        first_key = self._next_key
        self._thread.join(self._group(window))
        for _ in window.vectors:
            search, found = self._thread.take()
            if found is None or found.skipped:
                raise ContestantError(f"clusters were skipped: {found and found.errors}")
            yield FoundRows(window.first + search.key - first_key, found.best.rows)

    def close(self) -> None:
        """Ends the search thread and frees the memory."""
        if self._thread is not None:
            self._thread.close()

    def _plane(self, index: OpenIndex, settings: SearcherSettings) -> SearchPlane:
        if self._mode == "exact":
            return open_exact_plane(index, settings, self.metrics, SystemClock())
        plane = open_search_plane(index, settings, self.metrics, SystemClock())
        if not isinstance(plane, BothPlanes):
            plane.close()
            raise MemoryError(
                f"no codes of the index fit {settings.budget_bytes} bytes, or it has none; raise "
                "--memory, or build the index with codes"
            )
        return plane

    def _group(self, window: AskedWindow) -> SearchGroup:
        horizon: dict[ClusterId, int] = {}
        for windows, probes in reversed(list(enumerate(window.ahead, start=1))):
            horizon |= dict.fromkeys(map(ClusterId, probes.ravel().tolist()), windows)
        searches = tuple(
            Search(
                key=self._next_key + at,
                vector=vector,
                clusters=tuple(map(ClusterId, clusters)),
                top_k=self._top_k,
                mode=self._mode,
            )
            for at, (vector, clusters) in enumerate(
                zip(window.vectors, window.probes.tolist(), strict=True)
            )
        )
        self._next_key += len(searches)
        return SearchGroup(searches=searches, window=self._next_key, horizon=horizon)

    def _with_shard(self, index: OpenIndex, settings: SearcherSettings) -> SearcherSettings:
        nlist, dimension = index.centroids.shape
        number_bytes = 2 if self._shard_share > 1 else 1  # as the searcher stores all, or some rows
        rows_bytes = int(self._shard_share * index.manifest.row_count * dimension * number_bytes)
        return msgspec.structs.replace(settings, shard_bytes=gpu_bytes_for(rows_bytes, nlist))

    def _fill_shard(self, data: SearchData) -> None:
        """Asks the earlier questions until they have filled the shard, and no cluster enters."""
        asked, loaded = 0, -1.0
        while asked < CHOICES[-1] or self._loaded_clusters() != loaded:
            loaded = self._loaded_clusters()
            first = asked % max(1, len(data.earlier) - SHARD_WINDOW)
            some = slice(first, first + SHARD_WINDOW)
            window = AskedWindow(first, data.earlier[some], data.earlier_probes[some], ())
            asked += sum(1 for _ in self.search(window))

    def _loaded_clusters(self) -> float:
        labels = {"result": "loaded"}
        name = "carpool_shard_swaps_total"
        return float(self.metrics.registry.get_sample_value(name, labels) or 0.0)
