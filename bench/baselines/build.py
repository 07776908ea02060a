"""Opens the executor of the baseline over the memory of a search plane."""

from __future__ import annotations

from collections.abc import Callable

from bench.baselines.cluster_cache import ClusterCache
from bench.baselines.query_by_query import QueryByQuery
from bench.baselines.read_planner import PrefetchMode, ReadLimits, ReadPlanner
from searcher.build import PlaneParts
from searcher.executor import Executor


def query_by_query(prefetch: PrefetchMode) -> Callable[[PlaneParts], Executor]:
    """Returns the `executor` of `open_search_plane` that searches one query after the other.

    The settings must not cut clusters (`slice_bytes_max` 0).
    """

    def make(parts: PlaneParts) -> Executor:
        limits = ReadLimits(
            budget_bytes=parts.memory.arena_bytes_total,
            demand_reads_max=parts.settings.reads_in_flight_max,
            prefetch_reads_max=parts.settings.prefetch_reads_max,
            prefetch=prefetch,
        )
        planner = ReadPlanner(limits, parts.size_bytes(), parts.policy())
        cache = ClusterCache(memory=parts.memory, planner=planner, metrics=parts.metrics)
        return QueryByQuery(cache, parts.clock, parts.events)

    return make
