"""What searches in a run: the searcher's own parts, either with the paper's cache of entries, or as
the searcher opens them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.baselines.cluster_cache import ClusterCache
from bench.baselines.query_by_query import QueryByQuery
from bench.baselines.read_planner import ReadLimits, ReadPlanner
from bench.papers.cagr.plan import RunSpec
from carpool.clock import Clock
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from searcher.build import open_search_plane
from searcher.events import NoEvents
from searcher.executor import Executor
from searcher.memory.arena import Arena, choose_block_bytes
from searcher.memory.cluster_memory import ClusterMemory, ReadRules
from searcher.plan.eviction.edgerag import EdgeRag
from searcher.plan.slices import SliceId
from searcher.settings import SearcherSettings
from searcher.store.factory import open_engine
from searcher.store.files import SegmentFiles

DEPTH = 16
READ_TIMEOUT_US = 30_000_000
CLOSE_TIMEOUT_S = 10.0
LOOK_EVERY_S = 0.0002


class PrefetchBetweenGroups(ClusterCache):
    """A cluster cache whose prefetch is over before the next group begins.

    CaGR-RAG, Algorithm 1, lines 35-37: to prefetch is a step of the loop, after the last search of
    a group. No query is being searched meanwhile, so that on a clock of single queries it costs
    nobody anything; `prefetch_us` keeps what it took.
    """

    prefetch_us = 0

    def end_group(self) -> None:
        """The group has passed; blocks until what the next one begins with has been read."""
        began = time.perf_counter_ns()
        super().end_group()
        while self._is_reading():
            time.sleep(LOOK_EVERY_S)
        self.prefetch_us += (time.perf_counter_ns() - began) // 1_000

    def _is_reading(self) -> bool:
        with self._changed:
            return self._planner.reading_bytes > 0 and not self._is_stopped


@dataclass(frozen=True, kw_only=True)
class Rig:
    """An open way to search. `limit`: what the cache holds at most, in words; `prefetch_us`:
    between groups, so far.
    """

    executor: Executor
    memory: ClusterMemory
    metrics: Metrics
    limit: str
    prefetch_us: Callable[[], int]
    check: Callable[[], None]
    close: Callable[[], None]


def open_rig(spec: RunSpec, index: OpenIndex, clock: Clock) -> Rig:
    """Returns what `spec` searches with; nothing is in memory. Raises `ConfigError` where the index
    has too few clusters.
    """
    if spec.nprobe > index.manifest.nlist or spec.entries > index.manifest.nlist:
        raise ConfigError(
            f"the figure needs nprobe {spec.nprobe} and a cache of {spec.entries} clusters, and "
            "the index has "
            f"{index.manifest.nlist}: name one of nlist 100, as in the paper, with --index"
        )
    return (
        _open_carpool(spec, index, clock)
        if spec.method == "carpool"
        else _open_published(spec, index, clock)
    )


def _open_carpool(spec: RunSpec, index: OpenIndex, clock: Clock) -> Rig:
    """The searcher's default, told of nothing that waits, with the bytes of as many mean clusters
    as the paper's cache holds.
    """
    total_bytes = sum(extent.size_bytes for extent in index.extents)
    budget_bytes = max(
        total_bytes * spec.entries // len(index.extents),
        2 * max(extent.size_bytes for extent in index.extents),
    )
    metrics = Metrics()
    plane = open_search_plane(
        index, SearcherSettings(budget_bytes=budget_bytes), metrics, clock, events=NoEvents()
    )
    return Rig(
        executor=plane.executor,
        memory=plane.memory,
        metrics=metrics,
        limit=f"{plane.memory.arena_bytes_total} bytes",
        prefetch_us=lambda: 0,
        check=plane.executor.check_integrity,
        close=plane.close,
    )


def _open_published(spec: RunSpec, index: OpenIndex, clock: Clock) -> Rig:
    """EdgeRAG's cache of `entries` clusters of any size, query by query.

    Memory is counted in clusters: the planner is told that each takes 1 of a budget of `entries`,
    being read or resident. The arena holds the largest ones, so that entries are the only limit.
    """
    if not index.manifest.read_latency_us:
        raise ConfigError(
            f"{index.dir} has no profile of read latencies, by which EdgeRAG's cache evicts "
            f"(section 4.1): make one with carpool index profile {index.dir}"
        )
    sizes = sorted((extent.size_bytes for extent in index.extents), reverse=True)
    block_bytes = choose_block_bytes(index.layout.page_bytes, sum(sizes) // len(sizes))
    arena_bytes = sum(-(-size // block_bytes) * block_bytes for size in sizes[: spec.entries])
    files, metrics = SegmentFiles(index.segment_paths, "require"), Metrics()
    memory = ClusterMemory(
        layout=index.layout,
        extents=index.extents,
        build_id=index.manifest.build_id,
        paths=[str(path) for path in index.segment_paths],
        arena=Arena(arena_bytes, block_bytes),
        engine=open_engine("auto", files, depth=DEPTH, prefetch_depth=DEPTH, clock=clock),
        rules=ReadRules(attempts=1, timeout_us=READ_TIMEOUT_US),
        metrics=metrics,
        clock=clock,
        events=NoEvents(),
    )
    policy = EdgeRag(
        {SliceId(c): latency_us for c, latency_us in enumerate(index.manifest.read_latency_us)}
    )
    limits = ReadLimits(
        budget_bytes=spec.entries,
        demand_reads_max=DEPTH,
        prefetch_reads_max=DEPTH,
        prefetch="after_group" if spec.method == "cagr-qgp" else "none",
    )
    planner = ReadPlanner(limits, {SliceId(extent.cluster): 1 for extent in index.extents}, policy)
    cache = PrefetchBetweenGroups(memory=memory, planner=planner, metrics=metrics)

    def check() -> None:
        planner.check_integrity()
        memory.check_integrity()
        assert (
            memory.residents() == planner.residents() and len(planner.residents()) <= spec.entries
        )

    def close() -> None:
        assert memory.close(CLOSE_TIMEOUT_S), "a read did not come back"
        files.close()

    return Rig(
        executor=QueryByQuery(cache, clock, NoEvents()),
        memory=memory,
        metrics=metrics,
        limit=f"{spec.entries} entries",
        prefetch_us=lambda: cache.prefetch_us,
        check=check,
        close=close,
    )
