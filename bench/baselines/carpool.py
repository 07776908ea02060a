"""Carpool's search plane without Kafka, as the searcher opens it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from bench.baselines.contestant import (
    AskedQuery,
    AskedWindow,
    ContestantCounters,
    ContestantEntry,
    ContestantError,
    FoundRows,
    Limits,
    SearchData,
)
from bench.core.plane_counts import bytes_read
from schemas.record import ClusterId

if TYPE_CHECKING:
    from carpool.clock import Clock
    from carpool.disk.index import OpenIndex
    from schemas.query import SearchMode
    from searcher.build import OpenExecutor, SearchPlane
    from searcher.executor import SearchGroup
    from searcher.local import SearchThread
    from searcher.settings import SearcherSettings
    from searcher.shard.open import DeviceName

BUFFERS_BYTES = 64 << 20
"""Buffers of rows in flight, and the least memory of exact searches, with some to spare."""
GROWTH_BYTES = 12 << 20
"""How much the process may grow outside the budget after `open`: scores, results, stacks."""
SHARD_WINDOW = 64
SHARD_SHARES = {"5": 0.05, "10": 0.1, "20": 0.2, "all": 1.5}
"""Rows of a hot shard, as a share of all rows. All clusters need more than 1, because the blocks of
the GPU's memory are partly empty.
"""
READ_TIMEOUT_MS = 60_000
"""A read that is late because the machine pauses is reported as latency, and skips no cluster."""


def cache_budget(limits: Limits, clusters_bytes: int) -> int:
    """Returns the bytes that the memory for clusters may take.

    `limits.cache_bytes`, or what `limits.memory_bytes` leaves beside the process as it is now, at
    most enough for all of `clusters_bytes`. Raises `MemoryError` where nothing is left.
    """
    from bench.core.memory import memory_of

    if limits.cache_bytes is not None:
        return limits.cache_bytes
    budget_bytes = 2 * clusters_bytes
    if limits.memory_bytes is not None:
        budget_bytes = min(
            budget_bytes, limits.memory_bytes - memory_of(os.getpid()).resident_bytes - GROWTH_BYTES
        )
    if budget_bytes <= 0:
        raise MemoryError(
            f"{limits.memory_bytes} bytes hold no cluster beside interpreter and libraries; raise "
            "--memory, or limit only the memory for clusters, with --cache"
        )
    return budget_bytes


class CarpoolExact:
    """Exact search with `ExactOptions` of `options`, each window joined as one group.

    `uses_horizon`: the executor knows what the next windows want.
    """

    _mode: SearchMode = "exact"
    _more_bytes = 0

    def __init__(self, *, uses_horizon: bool = False, **options: Any) -> None:
        self._uses_horizon = uses_horizon
        self._options = options
        self._thread: SearchThread | None = None
        self._numbers: dict[int, int] = {}
        self._next_key = 0
        self._top_k = 0

    def open(self, data: SearchData, limits: Limits) -> None:
        """Opens the index with the budget of `cache_budget`; reads no cluster."""
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        from bench.data.clusters import clusters_bytes, open_clusters
        from carpool.clock import SystemClock
        from carpool.telemetry.metrics import Metrics
        from searcher.local import SearchThread
        from searcher.settings import SearcherSettings

        threadpool_limits(limits=1, user_api="blas")
        index = open_clusters(data.index_dir)
        settings = SearcherSettings(
            budget_bytes=cache_budget(limits, clusters_bytes(index)) + self._more_bytes,
            scoring_threads=limits.threads,
            read_timeout_ms=READ_TIMEOUT_MS,
        )
        self._metrics, self._top_k = Metrics(), data.top_k
        self._thread = SearchThread(self._plane(index, settings, SystemClock()))

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Joins the window and yields each result as it is finished."""
        assert self._thread is not None
        for group in self._groups(window):
            self._thread.join(group)
        for _ in window.queries:
            search, found = self._thread.take()
            if found is None or found.skipped:
                raise ContestantError(
                    f"clusters {found.skipped if found else ()} were skipped: "
                    f"{found and found.errors}"
                )
            yield FoundRows(self._numbers.pop(search.key), found.best.rows)

    def counters(self) -> ContestantCounters:
        """Returns the counts of the searcher's own metrics."""
        return ContestantCounters(
            bytes_read=sum(bytes_read(self._metrics)),
            cache_bytes=int(self._metrics.registry.get_sample_value("carpool_budget_bytes") or 0),
        )

    def close(self) -> None:
        """Ends the search thread and frees the memory."""
        if self._thread is not None:
            self._thread.close()

    def _executor(self) -> OpenExecutor:
        from searcher.build import cluster_major

        return cluster_major

    def _plane(self, index: OpenIndex, settings: SearcherSettings, clock: Clock) -> SearchPlane:
        from searcher.build import ExactOptions, open_exact_plane

        return open_exact_plane(
            index,
            settings,
            self._metrics,
            clock,
            executor=self._executor(),
            options=ExactOptions(**self._options),
        )

    def _groups(self, window: AskedWindow) -> list[SearchGroup]:
        return [self._group(window, range(len(window.queries)), ())]

    def _group(
        self, window: AskedWindow, members: range | tuple[int, ...], following: tuple[int, ...]
    ) -> SearchGroup:
        """The queries `members` of `window`; `following` are the members of the next group."""
        from searcher.executor import Search, SearchGroup

        searches = []
        for member in members:
            query = window.queries[member]
            self._numbers[self._next_key] = query.number
            clusters = tuple(map(ClusterId, query.clusters.tolist()))
            searches.append(
                Search(
                    key=self._next_key,
                    vector=query.vector,
                    clusters=clusters,
                    top_k=self._top_k,
                    mode=self._mode,
                )
            )
            self._next_key += 1
        horizon: dict[ClusterId, int] = {}
        if self._uses_horizon:
            for windows, probes in reversed(list(enumerate(window.ahead, start=1))):
                horizon |= dict.fromkeys(map(ClusterId, probes.ravel().tolist()), windows)
        next_query = (
            tuple(map(ClusterId, window.queries[following[0]].clusters.tolist()))
            if following
            else ()
        )
        return SearchGroup(
            searches=tuple(searches),
            window=window.queries[0].number,
            next_query=next_query,
            horizon=horizon,
        )


class CarpoolCodes(CarpoolExact):
    """Codes in memory and few rows, as the searcher opens an index with codes.

    `shard_share`: the rows of a hot shard, as a share of the index's; it is filled with what the
    earlier questions probe.
    """

    def __init__(
        self, mode: SearchMode, shard: DeviceName | None = None, shard_share: float = 0.0
    ) -> None:
        super().__init__()
        self._mode = mode
        self._shard = shard
        self._shard_share = shard_share

    def open(self, data: SearchData, limits: Limits) -> None:
        """Opens the index with the codes that the budget of `cache_budget` allows."""
        # FAISS takes 30 MB, which `cache_budget` must see.
        import faiss  # noqa: F401

        # Without a limit the budget is that of clusters, and a small index has larger buffers.
        self._more_bytes = BUFFERS_BYTES if limits.memory_bytes is None else 0
        super().open(data, limits)
        if self._shard is not None:
            self._fill_shard(data)

    def _fill_shard(self, data: SearchData) -> None:
        """Asks the earlier questions until they have filled the shard, and no cluster enters."""
        from searcher.plan.hot_swaps import CHOICES

        last, asked, loaded = len(data.earlier), 0, -1.0
        while asked < CHOICES[-1] or _loaded_clusters(self._metrics) != loaded:
            loaded = _loaded_clusters(self._metrics)
            numbers = [(asked + one) % last for one in range(SHARD_WINDOW)]
            window = tuple(
                AskedQuery(one, data.earlier[one], data.earlier_probes[one]) for one in numbers
            )
            for _ in self.search(AskedWindow(window, ())):
                pass
            asked += SHARD_WINDOW

    def _plane(self, index: OpenIndex, settings: SearcherSettings, clock: Clock) -> SearchPlane:
        from searcher.build import BothPlanes, open_search_plane

        if self._shard is not None:
            settings = self._with_shard(index, settings, self._shard)
        plane = open_search_plane(
            index,
            settings,
            self._metrics,
            clock,
        )
        if not isinstance(plane, BothPlanes):
            plane.close()
            raise MemoryError(
                f"no codes of the index fit {settings.budget_bytes} bytes, or it has none; raise "
                "--memory, or build the index with codes"
            )
        return plane

    def _with_shard(
        self, index: OpenIndex, settings: SearcherSettings, device: DeviceName
    ) -> SearcherSettings:
        from searcher.plan.gpu_blocks import gpu_bytes_for

        nlist, dimension = index.centroids.shape
        number_bytes = 2 if self._shard_share > 1 else 1  # as the searcher stores all, or some rows
        rows_bytes = int(self._shard_share * index.manifest.row_count * dimension * number_bytes)
        if device == "ram":
            settings = msgspec.structs.replace(
                settings, budget_bytes=settings.budget_bytes + rows_bytes
            )
        else:
            rows_bytes = gpu_bytes_for(
                rows_bytes,
                dimension=dimension,
                stored_bytes=number_bytes,
                computed_bytes=2,
                nlist=nlist,
            )
        return msgspec.structs.replace(settings, shard=device, shard_bytes_max=rows_bytes)


def _loaded_clusters(metrics: Any) -> float:
    found = metrics.registry.get_sample_value("carpool_shard_swaps_total", {"result": "loaded"})
    return float(found or 0.0)


def _codes(name: str, summary: str, mode: SearchMode) -> ContestantEntry:
    return ContestantEntry(
        name=name,
        summary=summary,
        is_exact=False,
        make=partial(CarpoolCodes, mode),
    )


def _gpu(share: str) -> ContestantEntry:
    part = f"the clusters that other questions probe most, {share} % of the bytes,"
    return ContestantEntry(
        name=f"gpu-shard-{share}",
        summary=f"as carpool, with {'all clusters' if share == 'all' else part} on a GPU",
        is_exact=False,
        needs_gpu=True,
        make=partial(CarpoolCodes, "default", "gpu", SHARD_SHARES[share]),
    )


ENTRIES = (
    *map(_gpu, SHARD_SHARES),
    _codes("carpool", "codes in memory, few rows from disk, the default promise", "default"),
    _codes("carpool-margin", "as carpool, more rows: at most 1 id in 10,000 missed", "margin"),
    ContestantEntry(
        name="carpool-exact",
        summary="each cluster once a window; knows the next 4 windows: evicts by next use, reads "
        "ahead",
        is_exact=True,
        has_cache_budget=True,
        make=partial(CarpoolExact, uses_horizon=True),
    ),
)
