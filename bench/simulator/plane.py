"""The search plane of both sides, opened as the searcher opens it.

One side runs; of the other only the planner is used. So slices, budget, limits, policy and the
memory of each slice are the searcher's own on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from bench.data.clusters import clusters_bytes
from bench.data.evaluation import Float32
from bench.data.trace import Trace, trace_over
from carpool.clock import SystemClock
from carpool.disk.extents import ClusterExtent
from carpool.disk.index import OpenIndex
from carpool.telemetry.metrics import Metrics
from searcher.build import (
    ExactOptions,
    PlaneParts,
    SearchPlane,
    cluster_major,
    cluster_major_planner,
    open_exact_plane,
)
from searcher.executor import Executor
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cut import Slices
from searcher.plan.slices import SliceId
from searcher.scoring.pool import ScoringPool
from searcher.scoring.scan import QueryBatch, Scoring
from searcher.scoring.top_k import Candidates, TopTable
from searcher.settings import SearcherSettings

OVERTAKE_US = 60_000_000
"""Not the searcher's limit: overtaking a slow read changes what is read, so none is overtaken."""
READ_TIMEOUT_MS = 30_000


class TimedPool(ScoringPool):
    """A pool that tells how long each sub-stage took, in microseconds."""

    def __init__(self, inner: ScoringPool, on_scored: Callable[[int], None]) -> None:
        self._inner, self._on_scored = inner, on_scored

    def run(
        self, scorings: Sequence[Scoring], batch: QueryBatch, table: TopTable
    ) -> list[Candidates]:
        """Scores, and tells."""
        began_ns = time.perf_counter_ns()
        found = self._inner.run(scorings, batch, table)
        self._on_scored((time.perf_counter_ns() - began_ns) // 1_000)
        return found


@dataclass(frozen=True)
class ComparedPlane:
    """What is searched, and with which settings."""

    index: OpenIndex
    settings: SearcherSettings
    options: ExactOptions

    def trace(self, questions: Float32, *, nprobe: int, window: int) -> Trace:
        """Returns the trace of `questions`, (n, dim) float32, row-normalised, in clusters."""
        sizes, rows = _by_number(self.index.extents)
        return trace_over(
            self.index.centroids, questions, sizes, rows, nprobe=nprobe, window=window
        )

    def sliced(self, trace: Trace) -> Trace:
        """Returns `trace` as a planner sees it: slices instead of clusters."""
        slices = Slices(self.index.extents, self.index.layout, self.options.slice_bytes_max)
        sizes, rows = _by_number(slices.extents)
        windows = tuple(tuple(map(slices.of_all, window)) for window in trace.windows)
        return Trace(windows=windows, size_bytes=sizes, row_count=rows)

    def open(self, metrics: Metrics, on_scored: Callable[[int], None]) -> SearchPlane:
        """Returns a plane with nothing in memory; the caller closes it.

        `on_scored` gets the microseconds of each sub-stage.
        """

        def executor(parts: PlaneParts) -> Executor:
            timed = replace(parts, pool=TimedPool(parts.pool, on_scored))
            return cluster_major(timed, cluster_major_planner(parts, overtake_us=OVERTAKE_US))

        return open_exact_plane(
            self.index,
            self.settings,
            metrics,
            SystemClock(),
            executor=executor,
            options=self.options,
        )

    def planner(self) -> ClusterMajorPlanner:
        """Returns the planner of a plane that reads nothing."""
        planners: list[ClusterMajorPlanner] = []

        def executor(parts: PlaneParts) -> Executor:
            planners.append(cluster_major_planner(parts, overtake_us=OVERTAKE_US))
            return cluster_major(parts, planners[0])

        open_exact_plane(
            self.index,
            self.settings,
            Metrics(),
            SystemClock(),
            executor=executor,
            options=self.options,
        ).close()
        return planners[0]


def with_budget(
    index: OpenIndex, settings: SearcherSettings, budget_share: float
) -> SearcherSettings:
    """Returns `settings` with this share of all clusters' bytes, and a patient time-out."""
    return structs.replace(
        settings,
        budget_bytes=int(budget_share * clusters_bytes(index)),
        read_timeout_ms=READ_TIMEOUT_MS,
    )


def _by_number(
    extents: Sequence[ClusterExtent],
) -> tuple[dict[SliceId, int], dict[SliceId, int]]:
    """Sizes and rows by number."""
    numbered = [(SliceId(number), extent) for number, extent in enumerate(extents)]
    return (
        {number: extent.size_bytes for number, extent in numbered},
        {number: extent.row_count for number, extent in numbered},
    )
