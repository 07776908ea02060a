"""The search engine of a run: the paper's cache of entries, or the searcher's default.

Both use the search plane that the searcher opens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.baselines.cluster_cache import ClusterCache
from bench.baselines.edgerag import EdgeRag
from bench.baselines.query_by_query import QueryByQuery
from bench.baselines.read_latencies import read_latencies_us
from bench.baselines.read_planner import ReadLimits, ReadPlanner
from bench.papers.cagr.plan import RunSpec
from carpool.clock import Clock
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from searcher.build import ExactOptions, ExactPlane, PlaneParts, open_exact_plane
from searcher.events import NoEvents
from searcher.executor import Executor
from searcher.memory.arena import choose_block_bytes
from searcher.plan.slices import SliceId
from searcher.settings import SearcherSettings

DEPTH = 16
READ_TIMEOUT_MS = 30_000


class PrefetchBetweenGroups(ClusterCache):
    """A cluster cache whose prefetch ends before the next group begins.

    CaGR-RAG, Algorithm 1, lines 35-37: prefetching is a step of the loop, after the last search of
    a group. No query is searched meanwhile, so no query's own clock includes it. `prefetch_us`:
    the time of all prefetches.
    """

    prefetch_us = 0

    def end_group(self) -> None:
        """Ends the group; blocks until the clusters of the next group's first query are read."""
        began = time.perf_counter_ns()
        super().end_group()
        while self.is_reading():
            self.wait()
        self.prefetch_us += (time.perf_counter_ns() - began) // 1_000


@dataclass(frozen=True, kw_only=True)
class FigureEngine:
    """An open way to search. `limit`: of its memory; `prefetch_us`: between groups so far."""

    plane: ExactPlane
    metrics: Metrics
    limit: str
    prefetch_us: Callable[[], int]


def open_engine_of(spec: RunSpec, index: OpenIndex, clock: Clock) -> FigureEngine:
    """Returns the engine of `spec`, with no cluster in memory.

    Raises `ConfigError` where the index has too few clusters, or its file system no O_DIRECT.
    """
    nlist = index.manifest.nlist
    if spec.nprobe > nlist or spec.entries > nlist:
        raise ConfigError(
            f"the figure needs nprobe {spec.nprobe} and a cache of {spec.entries} clusters, and "
            f"the index has {nlist}: name one of nlist 100, as in the paper, with --index"
        )
    return (
        _carpool(spec, index, clock) if spec.method == "carpool" else _entries(spec, index, clock)
    )


def _carpool(spec: RunSpec, index: OpenIndex, clock: Clock) -> FigureEngine:
    """The searcher's default without a horizon, with the bytes of `entries` mean clusters."""
    sizes = [extent.size_bytes for extent in index.extents]
    budget_bytes = max(sum(sizes) * spec.entries // len(sizes), 2 * max(sizes))
    metrics = Metrics()
    settings = SearcherSettings(budget_bytes=budget_bytes)
    plane = open_exact_plane(index, settings, metrics, clock, events=NoEvents())
    return FigureEngine(
        plane=plane,
        metrics=metrics,
        limit=f"{plane.memory.arena_bytes_total} bytes",
        prefetch_us=lambda: 0,
    )


def _entries(spec: RunSpec, index: OpenIndex, clock: Clock) -> FigureEngine:
    """EdgeRAG's cache of `entries` clusters of any size, query by query.

    To the planner each cluster takes 1 of a budget of `entries`, being read or resident. The arena
    is large enough for the largest ones, so that entries are the only limit.
    """
    latencies_us = read_latencies_us(index, clock)
    sizes = sorted((extent.size_bytes for extent in index.extents), reverse=True)
    block_bytes = choose_block_bytes(index.layout.page_bytes, sum(sizes) // len(sizes))
    metrics = Metrics()
    caches: list[PrefetchBetweenGroups] = []

    def executor(parts: PlaneParts) -> Executor:
        limits = ReadLimits(
            budget_bytes=spec.entries,
            demand_reads_max=DEPTH,
            prefetch_reads_max=DEPTH,
            prefetch="after_group" if spec.method == "cagr-qgp" else "none",
        )
        policy = EdgeRag(latencies_us)
        entry_sizes = {SliceId(extent.cluster): 1 for extent in index.extents}
        planner = ReadPlanner(limits, entry_sizes, policy)
        caches.append(
            PrefetchBetweenGroups(
                memory=parts.memory, planner=planner, waker=parts.waker, metrics=metrics
            )
        )
        return QueryByQuery(caches[0], clock, parts.events)

    settings = SearcherSettings(
        budget_bytes=sum(-(-size // block_bytes) * block_bytes for size in sizes[: spec.entries]),
        read_timeout_ms=READ_TIMEOUT_MS,
    )
    options = ExactOptions(slice_bytes_max=0, ahead_max=DEPTH)
    plane = open_exact_plane(
        index, settings, metrics, clock, events=NoEvents(), executor=executor, options=options
    )
    return FigureEngine(
        plane=plane,
        metrics=metrics,
        limit=f"{spec.entries} entries",
        prefetch_us=lambda: caches[0].prefetch_us,
    )
