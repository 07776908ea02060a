"""Carpool's search plane without Kafka: memory, planner and executor as the searcher opens them, in
several combinations.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from bench.retrieval.contestant import (
    Arrivals,
    Contestant,
    ContestantError,
    Counters,
    Dataset,
    Entry,
    Limits,
    Result,
    Window,
)
from schemas.record import ClusterId

if TYPE_CHECKING:
    from bench.baselines.read_planner import PrefetchMode
    from searcher.build import SearchPlane
    from searcher.executor import Search, SearchGroup, SearchResult

HORIZON_WINDOWS = 4
"""As the grouper reads ahead unless told otherwise."""
BESIDE_BYTES = 12 << 20
"""What the process may grow by once it is opened, beside the budget: scores, results, stacks."""
READ_TIMEOUT_MS = 60_000
"""On a machine that stands still a read comes late: that is a latency to report, not a cluster to
skip.
"""


def cache_budget(limits: Limits, clusters_bytes: int) -> int:
    """Returns what the memory for clusters may take: `limits.cache_bytes` as it is; else what
    `limits.memory_bytes` leaves beside the process as it stands, at most what holds all of
    `clusters_bytes`, however blocks are rounded.

    Raises `ConfigError` where nothing is left.
    """
    from bench.core.memory import memory_of
    from carpool.errors import ConfigError

    if limits.cache_bytes is not None:
        return limits.cache_bytes
    budget_bytes = 2 * clusters_bytes
    if limits.memory_bytes is not None:
        budget_bytes = min(
            budget_bytes, limits.memory_bytes - memory_of(os.getpid()).resident_bytes - BESIDE_BYTES
        )
    if budget_bytes <= 0:
        raise ConfigError(
            f"{limits.memory_bytes} bytes hold no cluster beside interpreter and libraries; raise "
            "--memory, or limit only the memory for clusters, with --cache"
        )
    return budget_bytes


class BusyDisk:
    """An `EventLog` that adds up the time in which at least one cluster was being read."""

    def __init__(self) -> None:
        self.busy_us = 0
        self._last_us = 0
        self._lock = threading.Lock()

    def read(self, cluster: ClusterId, purpose: str, started_us: int, ended_us: int) -> None:
        """Adds what no read before has covered; reads end nearly in the order in which they
        began.
        """
        with self._lock:
            self.busy_us += max(0, ended_us - max(started_us, self._last_us))
            self._last_us = max(self._last_us, ended_us)

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        """Does nothing."""


class Carpool:
    """The search plane with `settings` of `[searcher]`. `horizon_windows`: how far ahead it is told
    what will be asked.
    """

    def __init__(
        self,
        name: str,
        *,
        horizon_windows: int,
        query_by_query: PrefetchMode | None = None,
        **settings: Any,
    ) -> None:
        """`query_by_query`: searches as the baseline does, and reads ahead in this way."""
        self.name = name
        self._horizon_windows = horizon_windows
        self._query_by_query = query_by_query
        self._settings = settings
        self._dataset: Dataset | None = None
        self._plane: SearchPlane | None = None
        self._thread: threading.Thread | None = None
        self._found: queue.SimpleQueue[tuple[Search, SearchResult | None] | BaseException] = (
            queue.SimpleQueue()
        )
        self._numbers: dict[int, int] = {}
        self._next_key = 0
        self._busy = BusyDisk()

    def open(self, dataset: Dataset, limits: Limits) -> None:
        """Opens the index with the budget of `cache_budget`; nothing is read ahead of the
        queries.
        """
        from msgspec import structs
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        from bench.baselines.build import query_by_query
        from carpool.clock import SystemClock
        from carpool.disk.index import open_index
        from carpool.telemetry.metrics import Metrics
        from searcher.build import OpenExecutor, cluster_major, open_search_plane
        from searcher.settings import SearcherSettings

        threadpool_limits(limits=1, user_api="blas")
        index = open_index(dataset.index_dir)
        index.close()
        budget_bytes = cache_budget(limits, sum(extent.size_bytes for extent in index.extents))
        self._metrics = Metrics()
        settings = SearcherSettings(
            budget_bytes=budget_bytes,
            scoring_threads=limits.threads,
            read_timeout_ms=READ_TIMEOUT_MS,
            **self._settings,
        )
        executor: OpenExecutor = cluster_major
        if self._query_by_query is not None:
            settings = structs.replace(settings, slice_bytes_max=0)
            executor = query_by_query(self._query_by_query)
        self._plane = open_search_plane(
            index, settings, self._metrics, SystemClock(), events=self._busy, executor=executor
        )
        self._dataset = dataset
        self._thread = threading.Thread(target=self._search, name="search", daemon=True)
        self._thread.start()

    def run(self, arrivals: Arrivals) -> Iterator[Result]:
        """Lets each window join, and yields what leaves, as it leaves."""
        owed = 0
        while owed or not arrivals.ended:
            window = arrivals.take(0 if owed else None)
            if window is not None:
                assert self._plane is not None
                self._plane.executor.join(self._group(window, arrivals))
                owed += len(window.queries)
            elif owed:
                for number, found in self._take(arrivals):
                    owed -= 1
                    yield Result(arrivals.now_us(), number, 0, found.best.rows, True)

    def counters(self) -> Counters:
        """Returns bytes, hits and misses by the searcher's own metrics."""
        count = partial(self._metrics.registry.get_sample_value)
        read = [
            count("carpool_bytes_read_total", {"purpose": purpose}) or 0
            for purpose in ("demand", "prefetch")
        ]
        prefetches = {
            f"prefetch_{result}": count("carpool_prefetches_total", {"result": result}) or 0.0
            for result in ("used", "late", "wasted")
        }
        return Counters(
            bytes_read=int(sum(read)),
            disk_busy_us=self._busy.busy_us,
            cache_hits=int(count("carpool_cluster_requests_total", {"tier": "ram"}) or 0),
            cache_misses=int(count("carpool_cluster_requests_total", {"tier": "ssd"}) or 0),
            cache_bytes=int(count("carpool_budget_bytes") or 0),
            others=prefetches,
        )

    def close(self) -> None:
        """Ends the search thread and lets go of the memory."""
        if self._plane is not None:
            self._plane.executor.stop()
            if self._thread is not None:
                self._thread.join(10)
            self._plane.close()

    def _search(self) -> None:
        assert self._plane is not None
        try:
            self._plane.executor.run(lambda search, found: self._found.put((search, found)))
        except BaseException as error:  # told by the thread that waits
            self._found.put(error)

    def _group(self, window: Window, arrivals: Arrivals) -> SearchGroup:
        from searcher.executor import Search, SearchGroup

        assert self._dataset is not None
        searches = []
        for query in window.queries:
            clusters = tuple(map(ClusterId, query.clusters.tolist()))
            self._numbers[self._next_key] = query.number
            searches.append(
                Search(
                    key=self._next_key,
                    vector=query.vector,
                    clusters=clusters,
                    top_k=self._dataset.top_k,
                )
            )
            self._next_key += 1
        horizon: dict[ClusterId, int] = {}
        next_query: tuple[ClusterId, ...] = ()
        if self._horizon_windows and (ahead := arrivals.ahead(self._horizon_windows)):
            next_query = tuple(map(ClusterId, ahead[0][0].tolist()))
            for windows, probes in reversed(list(enumerate(ahead, start=1))):
                horizon |= dict.fromkeys(map(ClusterId, probes.ravel().tolist()), windows)
        return SearchGroup(
            searches=tuple(searches), window=self._next_key, next_query=next_query, horizon=horizon
        )

    def _take(self, arrivals: Arrivals) -> Iterator[tuple[int, SearchResult]]:
        """Yields what is done; waits for the first, but not for long: queries may arrive
        meanwhile.
        """
        try:
            items = [self._found.get(timeout=0.001)]
        except queue.Empty:
            return
        while not self._found.empty():
            items.append(self._found.get())
        for item in items:
            if isinstance(item, BaseException):
                raise item
            search, found = item
            if found is None or found.skipped:
                raise ContestantError(
                    f"clusters {found.skipped if found else ()} were skipped: "
                    f"{found and found.errors}"
                )
            yield self._numbers.pop(search.key), found


def _entry(name: str, summary: str, **options: Any) -> Entry:
    def make() -> Contestant:
        return Carpool(name, **options)

    return Entry(name=name, summary=summary, is_exact=True, has_cache_budget=True, make=make)


def _entries(name: str, summary: str, *, query_by_query: bool = False) -> tuple[Entry, ...]:
    """An execution with all that it may know of what waits, without reading ahead, and without
    knowing anything.
    """

    def ahead(prefetch: Literal["none", "overlapped"]) -> dict[str, str]:
        return {"query_by_query" if query_by_query else "prefetch": prefetch}

    return (
        _entry(
            name,
            f"{summary}; told of the {HORIZON_WINDOWS} windows that wait, evicts by next use, "
            "reads ahead",
            horizon_windows=HORIZON_WINDOWS,
            **ahead("overlapped"),
        ),
        _entry(
            f"{name}-kept",
            f"as {name}, without reading ahead: the horizon only says what to keep",
            horizon_windows=HORIZON_WINDOWS,
            **ahead("none"),
        ),
        _entry(
            f"{name}-blind",
            f"as {name}, told of nothing that waits: evicts by aged frequency",
            horizon_windows=0,
            **ahead("none"),
        ),
    )


_POLICIES = {
    "lru": "lru",
    "lfu": "lfu: the popularity cache",
    "tiny_lfu": "tiny_lfu: the popularity cache that forgets",
    "edgerag": "edgerag",
    "gdsf": "gdsf",
}
ENTRIES: tuple[Entry, ...] = (
    *_entries("carpool", "each cluster once a window"),
    *(
        _entry(
            f"carpool-{policy}",
            f"as carpool-blind, evicts by {what}",
            horizon_windows=0,
            prefetch="none",
            cache_policy=policy,
        )
        for policy, what in _POLICIES.items()
    ),
    _entry(
        "carpool-lfu-ahead",
        "as carpool, evicts by lfu: the horizon only says what to read ahead",
        horizon_windows=HORIZON_WINDOWS,
        cache_policy="lfu",
    ),
    *_entries("carpool-query-by-query", "one query after the other", query_by_query=True),
    _entry(
        "carpool-threads",
        "as carpool, reads by a pool of threads instead of io_uring",
        horizon_windows=HORIZON_WINDOWS,
        engine="threads",
    ),
)
"""Ours in every combination: by cluster or by query, told of what waits or not, reading ahead or
not, and every policy.

Without a horizon nothing can be read ahead; of the policies only `farthest_next_use` keeps by it.
What is read ahead is, by cluster, what the next windows want, and by query, what the first query of
the next window wants.
"""
