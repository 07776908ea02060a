"""The search plane of both sides, opened as the searcher opens it: one runs, of the other the
planner goes on virtual time.

So slices, budget, limits, policy and what each cluster takes in memory are the same on both sides,
and the searcher's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from msgspec import structs

from bench.baselines.build import query_by_query
from bench.baselines.read_planner import ReadPlanner
from bench.data.evaluation import Float32
from bench.simulator.memory import Shape
from bench.simulator.trace import Trace, trace_over
from bench.simulator.ways import Way
from carpool.clock import SystemClock
from carpool.disk.index import OpenIndex
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.build import OpenEngine, SearchPlane, cluster_major, open_search_plane
from searcher.cluster_major import ClusterMajor
from searcher.events import EventLog, NoEvents
from searcher.memory.slices import Slices
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.scoring.pool import ScoringPool
from searcher.settings import SearcherSettings
from searcher.store.none import NoEngine

OVERTAKE_US = 60_000_000
"""The one limit that is not the searcher's: a slow read that is passed over changes what is read,
and no disturbance may.
"""
READ_TIMEOUT_MS = 30_000


class Parts(NamedTuple):
    """An open plane, its planner, and how it cuts clusters: not at all query by query."""

    plane: SearchPlane
    planner: ClusterMajorPlanner | ReadPlanner
    slices: Slices


@dataclasses.dataclass(frozen=True)
class Rig:
    """What is searched, in which way, and with which settings."""

    index: OpenIndex
    way: Way
    settings: SearcherSettings

    def trace(self, questions: Float32, *, nprobe: int, window: int) -> Trace:
        """Returns the trace of `questions`, (n, dim) float32, row-normalised, in this order."""
        return trace_over(
            self.index.centroids,
            questions,
            {
                ClusterId(number): extent.size_bytes
                for number, extent in enumerate(self.index.extents)
            },
            {
                ClusterId(number): extent.row_count
                for number, extent in enumerate(self.index.extents)
            },
            nprobe=nprobe,
            window=window,
        )

    def shape(self, plane: SearchPlane) -> Shape:
        """Returns how the memory of `plane` is cut."""
        memory: Any = plane.memory
        return Shape(
            budget_bytes=plane.memory.arena_bytes_total,
            block_bytes=memory._arena.block_bytes,
            page_bytes=self.index.layout.page_bytes,
            depth=self.settings.reads_in_flight_max,
            prefetch_depth=self.settings.prefetch_reads_max,
        )

    @contextmanager
    def open(
        self, metrics: Metrics, *, events: EventLog, engine: OpenEngine | None = None
    ) -> Iterator[Parts]:
        """Yields a plane with nothing in memory; `events` and `engine` as for `open_search_plane`.
        Raises what that raises.
        """
        with self._open(metrics, events, engine, ScoringPool) as parts:
            yield parts

    @contextmanager
    def open_unused(self) -> Iterator[Parts]:
        """Yields a plane that cannot read, for the sake of its planner."""
        with self._open(
            Metrics(), NoEvents(), lambda _: NoEngine(clock=SystemClock()), lambda _: ScoringPool(1)
        ) as parts:
            yield parts

    @contextmanager
    def _open(
        self,
        metrics: Metrics,
        events: EventLog,
        engine: OpenEngine | None,
        pool: Callable[[int], ScoringPool],
    ) -> Iterator[Parts]:
        clock = SystemClock()
        plane = open_search_plane(
            self.index,
            self.settings,
            metrics,
            clock,
            events=events,
            engine=engine,
            pool=pool,
            executor=cluster_major if self.way.by_cluster else query_by_query(self.way.prefetch),
        )
        try:
            yield Parts(
                plane,
                _planner(plane),
                Slices(self.index.extents, self.index.layout, self.settings.slice_bytes_max),
            )
        finally:
            plane.close()


def rig_for(index: OpenIndex, way: Way, settings: SearcherSettings, budget_share: float) -> Rig:
    """Returns what both sides are given: `settings`, with the way's own and a budget of this share
    of all clusters' bytes.
    """
    settings = structs.replace(
        settings,
        budget_bytes=int(budget_share * sum(extent.size_bytes for extent in index.extents)),
        cache_policy=way.policy,
        read_timeout_ms=READ_TIMEOUT_MS,
    )
    if not way.by_cluster:
        settings = structs.replace(settings, slice_bytes_max=0)
    return Rig(index, way, settings)


def sliced(trace: Trace, slices: Slices) -> Trace:
    """Returns `trace` as a planner sees it: slices instead of clusters."""
    return Trace(
        windows=tuple(tuple(map(slices.of_all, window)) for window in trace.windows),
        size_bytes={
            ClusterId(number): extent.size_bytes for number, extent in enumerate(slices.extents)
        },
        row_count={
            ClusterId(number): extent.row_count for number, extent in enumerate(slices.extents)
        },
    )


def _planner(plane: SearchPlane) -> ClusterMajorPlanner | ReadPlanner:
    executor: Any = plane.executor
    if not isinstance(executor, ClusterMajor):
        by_query: ReadPlanner = executor._cache._planner
        return by_query
    planner = executor._planner
    planner._limits = dataclasses.replace(planner._limits, overtake_us=OVERTAKE_US)
    return planner
