"""Carpool's search plane without Kafka, as the searcher opens it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from bench.core.plane_counts import bytes_read
from bench.search.contestants.contestant import (
    AskedWindow,
    ContestantEntry,
    ContestantError,
    FoundRows,
    Limits,
    SearchData,
)
from schemas.record import ClusterId

if TYPE_CHECKING:
    from carpool.disk.index import OpenIndex
    from carpool.telemetry.metrics import Metrics
    from schemas.query import SearchMode
    from searcher.build import SearchPlane
    from searcher.executor import SearchGroup
    from searcher.local import SearchThread
    from searcher.settings import SearcherSettings

BUFFERS_BYTES = 64 << 20
"""Buffers of rows in flight, and the least memory of exact searches, with some to spare."""
GROWTH_BYTES = 12 << 20
"""How much the process may grow outside the budget after `open`: scores, results, stacks."""
MODES: dict[str, SearchMode] = {
    "carpool": "default",
    "carpool-margin": "margin",
    "carpool-exact": "exact",
}
SHARD_WINDOW = 64
SHARD_SHARES = {"5": 0.05, "10": 0.1, "20": 0.2, "all": 1.5}
"""Rows of a hot shard, as a share of all rows. All clusters need more than 1, because the blocks of
the GPU's memory are partly empty.
"""
READ_TIMEOUT_MS = 60_000
"""A read that is late because the machine pauses is reported as latency, and skips no cluster."""


def budget_for(limits: Limits, clusters_bytes: int) -> int:
    """Returns the searcher's budget: what `limits` leave beside the process as it is now.

    At most enough for all of `clusters_bytes` and buffers. Raises `MemoryError` where nothing is
    left.
    """
    from bench.core.memory import memory_of

    budget_bytes = 2 * clusters_bytes + BUFFERS_BYTES
    if limits.memory_bytes is not None:
        budget_bytes = min(
            budget_bytes, limits.memory_bytes - memory_of(os.getpid()).resident_bytes - GROWTH_BYTES
        )
    if budget_bytes <= 0:
        raise MemoryError(
            f"{limits.memory_bytes} bytes hold no cluster beside interpreter and libraries; raise "
            "--memory"
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

    def open(self, data: SearchData, limits: Limits) -> None:
        """Opens the index in the memory of `budget_for`; reads codes, and the hot shard."""
        import faiss  # noqa: F401  # takes 30 MB, which `budget_for` must see
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        from bench.data.clusters import clusters_bytes, open_clusters
        from carpool.telemetry.metrics import Metrics
        from searcher.local import SearchThread
        from searcher.settings import SearcherSettings

        threadpool_limits(limits=1, user_api="blas")
        index = open_clusters(data.index_dir)
        settings = SearcherSettings(
            budget_bytes=budget_for(limits, clusters_bytes(index)),
            scoring_threads=limits.threads,
            read_timeout_ms=READ_TIMEOUT_MS,
        )
        self.metrics, self._top_k = Metrics(), data.top_k
        if self._shard_share:
            settings = self._with_shard(index, settings)
        self._thread: SearchThread = SearchThread(self._plane(index, settings))
        if self._shard_share:
            self._fill_shard(data)

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Joins the window and yields each result as it is finished."""
        first_key = self._next_key
        self._thread.join(self._group(window))
        for _ in window.vectors:
            search, found = self._thread.take()
            if found is None or found.skipped:
                raise ContestantError(
                    f"clusters {found.skipped if found else ()} were skipped: "
                    f"{found and found.errors}"
                )
            yield FoundRows(window.first + search.key - first_key, found.best.rows)

    def bytes_read(self) -> int:
        """Returns the count of the searcher's own metrics."""
        return bytes_read(self.metrics)

    def close(self) -> None:
        """Ends the search thread and frees the memory."""
        if hasattr(self, "_thread"):
            self._thread.close()

    def _plane(self, index: OpenIndex, settings: SearcherSettings) -> SearchPlane:
        from carpool.clock import SystemClock
        from searcher.build import BothPlanes, open_search_plane
        from searcher.open_exact import open_exact_plane

        clock = SystemClock()
        if self._mode == "exact":
            return open_exact_plane(index, settings, self.metrics, clock)
        plane = open_search_plane(
            index,
            settings,
            self.metrics,
            clock,
        )
        if not isinstance(plane, BothPlanes):
            plane.close()
            raise MemoryError(
                f"no codes of the index fit {settings.budget_bytes} bytes, or it has none; raise "
                "--memory, or build the index with codes"
            )
        return plane

    def _group(self, window: AskedWindow) -> SearchGroup:
        from searcher.executor import Search, SearchGroup

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
        from searcher.plan.gpu_blocks import gpu_bytes_for

        nlist, dimension = index.centroids.shape
        number_bytes = 2 if self._shard_share > 1 else 1  # as the searcher stores all, or some rows
        rows_bytes = int(self._shard_share * index.manifest.row_count * dimension * number_bytes)
        return msgspec.structs.replace(settings, shard_bytes=gpu_bytes_for(rows_bytes, nlist))

    def _fill_shard(self, data: SearchData) -> None:
        """Asks the earlier questions until they have filled the shard, and no cluster enters."""
        from searcher.plan.hot_swaps import CHOICES

        asked, loaded = 0, -1.0
        while asked < CHOICES[-1] or _loaded_clusters(self.metrics) != loaded:
            loaded = _loaded_clusters(self.metrics)
            first = asked % max(1, len(data.earlier) - SHARD_WINDOW)
            some = slice(first, first + SHARD_WINDOW)
            window = AskedWindow(first, data.earlier[some], data.earlier_probes[some], ())
            asked += sum(1 for _ in self.search(window))


def _loaded_clusters(metrics: Metrics) -> float:
    found = metrics.registry.get_sample_value("carpool_shard_swaps_total", {"result": "loaded"})
    return float(found or 0.0)


ENTRIES = (
    *(
        ContestantEntry(name=name, is_exact=mode == "exact", make=partial(Carpool, mode))
        for name, mode in MODES.items()
    ),
    *(
        ContestantEntry(
            name=f"gpu-shard-{name}",
            is_exact=False,
            needs="a GPU",
            make=partial(Carpool, "default", share),
        )
        for name, share in SHARD_SHARES.items()
    ),
)
