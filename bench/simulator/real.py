"""The same windows for real: the searcher's own planner, memory, engine and scoring over segments on a disk, with a stopwatch.

Without Kafka and without documents, so that nothing else is in the figures. Whoever runs it holds BLAS to one thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bench.data import Float32
from bench.simulator.arrivals import soonest
from bench.simulator.disk import DiskCosts
from bench.simulator.trace import Clustered, Trace
from carpool.clock import SystemClock
from carpool.disk.pages import PageLayout, choose_layout
from carpool.disk.segments import ClusterExtent, SegmentWriter, plan_extents, segment_name
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cache.arena import Arena, choose_block_bytes
from searcher.cache.cluster_memory import ClusterMemory, MemoryEvent, ReadRules
from searcher.cache.policies import PolicyName, make_policy
from searcher.cache.slices import Slices
from searcher.events import EventLog, NoEvents
from searcher.execution.cluster_major import ClusterMajor
from searcher.execution.executor import Found, Search, SearchGroup
from searcher.plan.cluster_major import ClusterMajorLimits, ClusterMajorPlanner
from searcher.plan.steps import Purpose
from searcher.scoring_pool import ScoringPool
from searcher.store.files import SegmentFiles
from searcher.store.opening import open_engine

GENERATION = 1
DEPTH, PREFETCH_DEPTH = 16, 2
TOP_K = 10
WAIT_S = 60.0


class Shelf(NamedTuple):
    """Segments on disk, without anything else of an index."""

    folder: Path
    layout: PageLayout
    extents: tuple[ClusterExtent, ...]
    direct_io: Literal["require", "auto"] = "require"

    @property
    def paths(self) -> list[Path]:
        """The files, in the order of the segments."""
        return [self.folder / segment_name(number) for number in range(1 + self.extents[-1].segment)]

    @property
    def size_bytes(self) -> int:
        """Bytes of all clusters on disk."""
        return sum(extent.size_bytes for extent in self.extents)


def write_shelf(folder: Path, vectors: Float32, clustered: Clustered) -> Shelf:
    """Writes (rows, dim) float32 as clusters into an empty folder. Blocks."""
    nlist, dimension = clustered.centroids.shape
    layout = choose_layout(dimension, "float32")
    extents = plan_extents(layout, np.bincount(clustered.assigned, minlength=nlist).tolist())
    writer = SegmentWriter(folder, layout=layout, generation=GENERATION, extents=extents)
    for number in range(nlist):
        rows = np.flatnonzero(clustered.assigned == number).astype(np.int64)
        writer.append(number, vectors[rows], rows)
    writer.close()
    return Shelf(folder, layout, tuple(extents))


class ReadTimes:
    """An `EventLog` that keeps how long reads took, from being asked for to being verified."""

    def __init__(self) -> None:
        self.took_us: list[int] = []

    def read(self, cluster: ClusterId, purpose: Purpose, started_us: int, ended_us: int) -> None:
        """Keeps it."""
        self.took_us.append(ended_us - started_us)

    def scored(self, cluster: ClusterId, started_us: int, ended_us: int) -> None:
        """Does nothing."""


@contextmanager
def open_memory(shelf: Shelf, budget_bytes: int, metrics: Metrics, events: EventLog) -> Iterator[ClusterMemory]:
    """Yields memory for clusters of `shelf`, read by the engine that this machine gives the searcher."""
    clock = SystemClock()
    block_bytes = choose_block_bytes(shelf.layout.page_bytes, shelf.size_bytes // len(shelf.extents))
    files = SegmentFiles(shelf.paths, shelf.direct_io)
    memory = ClusterMemory(
        layout=shelf.layout,
        extents=shelf.extents,
        generation=GENERATION,
        paths=[str(path) for path in shelf.paths],
        arena=Arena(budget_bytes, block_bytes),
        engine=open_engine("auto", files, depth=DEPTH, prefetch_depth=PREFETCH_DEPTH, clock=clock),
        rules=ReadRules(attempts=1, timeout_us=30_000_000),
        metrics=metrics,
        clock=clock,
        events=events,
    )
    try:
        yield memory
    finally:
        assert memory.close(10), "a read did not come back"
        files.close()


def measure_reads(shelf: Shelf, *, seed: int, reads: int = 60) -> DiskCosts:
    """Returns what reads through the engine take, verified pages included: one after the other, then many at a time. Blocks."""
    ended: queue.SimpleQueue[MemoryEvent] = queue.SimpleQueue()
    chosen = [ClusterId(int(c)) for c in np.random.default_rng(seed).permutation(len(shelf.extents))[:reads]]
    with open_memory(shelf, 2 * shelf.size_bytes + (64 << 20), Metrics(), NoEvents()) as memory:
        memory.start(ended.put)
        for cluster in chosen[:3]:  # threads and pages are warm from here on
            _read(memory, ended, [cluster])
        alone_us = [_read(memory, ended, [cluster]) for cluster in chosen]
        together_us = min(_read(memory, ended, chosen) for _ in range(3))
    sizes = [shelf.extents[cluster].size_bytes for cluster in chosen]
    bytes_per_us = sum(sizes) / together_us
    overheads_us = [took_us - size / bytes_per_us for took_us, size in zip(alone_us, sizes, strict=True)]
    return DiskCosts(
        overhead_us=max(1.0, float(np.median(overheads_us))),
        bytes_per_us=bytes_per_us,
        depth=DEPTH,
        prefetch_depth=PREFETCH_DEPTH,
    )


def _read(memory: ClusterMemory, ended: queue.SimpleQueue[MemoryEvent], clusters: Sequence[ClusterId]) -> float:
    began = time.perf_counter()
    for cluster in clusters:
        memory.begin_read(cluster, is_prefetch=False)
    for _ in clusters:
        ended.get(timeout=WAIT_S)
    took_us = (time.perf_counter() - began) * 1e6
    for cluster in clusters:
        memory.evict(cluster)
    return took_us


@dataclass(slots=True)
class Stopwatch:
    """How often something was called from outside, and how long that took: microseconds by name."""

    taken: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, each call of which is written down: (when it began, how long it took)."""
        calls = self.taken.setdefault(name, [])

        def call(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                calls.append((began * 1e6, (time.perf_counter() - began) * 1e6))

        return call

    def total_us(self, name: str) -> float:
        """Returns how long all calls of `name` took."""
        return sum(took_us for _, took_us in self.taken.get(name, ()))

    def mean_us(self, name: str) -> float:
        """Returns how long a call of `name` took; 0 where there was none."""
        return self.total_us(name) / max(1, len(self.taken.get(name, ())))


class RealRun(NamedTuple):
    """What a run did. `latency_us`: of each query in order, from the arrival of its window to its answer; `scored`: (rows,
    queries) of each cluster of each sub-stage; `read_us`: how long each read took."""

    bytes_read: int
    latency_us: tuple[float, ...]
    scored: tuple[tuple[tuple[int, int], ...], ...]
    read_us: tuple[int, ...]
    watch: Stopwatch


class Rig(NamedTuple):
    """What both the real run and the simulated one are given. Sizes in memory are those of the arena."""

    limits: ClusterMajorLimits
    memory_bytes: dict[ClusterId, int]
    policy: PolicyName

    def planner(self) -> ClusterMajorPlanner:
        """Returns a new planner, with nothing in memory."""
        policy = make_policy(
            self.policy, size_bytes=self.memory_bytes, budget_bytes=self.limits.budget_bytes, read_latency_us={}
        )
        return ClusterMajorPlanner(self.limits, self.memory_bytes, policy)


def rig_for(shelf: Shelf, limits: ClusterMajorLimits, policy: PolicyName) -> Rig:
    """Returns a rig whose budget is what the arena makes of that of `limits`."""
    with open_memory(shelf, limits.budget_bytes, Metrics(), NoEvents()) as memory:
        memory.start(lambda event: None)
        sizes = {ClusterId(extent.cluster): memory.arena_bytes(ClusterId(extent.cluster)) for extent in shelf.extents}
        budget_bytes = memory.arena_bytes_total
    limits = ClusterMajorLimits(
        budget_bytes=budget_bytes,
        read_ahead_bytes=limits.read_ahead_bytes,
        prefetch_bytes=limits.prefetch_bytes,
        overtaken_max=limits.overtaken_max,
        overtake_us=limits.overtake_us,
    )
    return Rig(limits, sizes, policy)


def run_windows(
    shelf: Shelf, rig: Rig, trace: Trace, questions: Float32, *, windows_ahead: int, threads: int
) -> RealRun:
    """Searches the windows of `trace` one after the other, each when the one before is answered, from an empty cache. Blocks.

    `questions`: (n, dim) float32, the vectors of its queries in their order.
    """
    metrics, watch, reads = Metrics(), Stopwatch(), ReadTimes()
    found: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
    scored: list[tuple[tuple[int, int], ...]] = []

    def finish(search: Search, result: Found | None) -> None:
        assert result is not None and not result.skipped, f"query {search.key} was not searched whole"
        found.put((search.key, time.perf_counter() * 1e6))

    with open_memory(shelf, rig.limits.budget_bytes, metrics, reads) as memory, ScoringPool(threads) as pool:
        planner = rig.planner()
        _watch_over(watch, memory, planner, pool, scored)
        executor = ClusterMajor(
            memory=memory,
            slices=Slices(shelf.extents, shelf.layout),
            planner=planner,
            pool=pool,
            metrics=metrics,
            clock=SystemClock(),
            events=NoEvents(),
        )
        thread = threading.Thread(target=executor.run, args=(watch.timed("finish", finish),), daemon=True)
        thread.start()
        try:
            latency_us = _ask(executor, found, trace, questions, windows_ahead, watch)
        finally:
            executor.stop()
            thread.join(WAIT_S)
        executor.check_integrity()
        count = metrics.registry.get_sample_value
        read = sum(count("carpool_bytes_read_total", {"purpose": purpose}) or 0 for purpose in ("demand", "prefetch"))
    return RealRun(int(read), latency_us, tuple(scored), tuple(reads.took_us), watch)


def _watch_over(
    watch: Stopwatch,
    memory: ClusterMemory,
    planner: ClusterMajorPlanner,
    pool: ScoringPool,
    scored: list[tuple[tuple[int, int], ...]],
) -> None:
    """Writes down how long the search thread is with each of the parts that it drives."""
    step, run = planner.step, pool.run
    timed: dict[str, Callable[..., Any]] = {}

    def timed_step(event: Any) -> Any:
        name = type(event).__name__
        return timed.setdefault(name, watch.timed(name, step))(event)

    def noted_run(scorings: Any, table: Any) -> Any:
        scored.append(tuple((scoring.pages.row_count, len(scoring.slots)) for scoring in scorings))
        return run(scorings, table)

    for owner, name, function in (
        (planner, "step", timed_step),
        (planner, "next_substage", watch.timed("next_substage", planner.next_substage)),
        (memory, "begin_read", watch.timed("begin_read", memory.begin_read)),
        (pool, "run", watch.timed("score", noted_run)),
    ):
        setattr(owner, name, function)


def _ask(
    executor: ClusterMajor,
    found: queue.SimpleQueue[tuple[int, float]],
    trace: Trace,
    questions: Float32,
    windows_ahead: int,
    watch: Stopwatch,
) -> tuple[float, ...]:
    latency_us: dict[int, float] = {}
    gaps = watch.taken.setdefault("arrival", [])
    answered_us = None
    for number, window in enumerate(trace.windows):
        searches = tuple(
            Search(key=len(latency_us) + at, vector=questions[len(latency_us) + at], clusters=clusters, top_k=TOP_K)
            for at, clusters in enumerate(window)
        )
        horizon = soonest(trace.windows[number + 1 : number + 1 + windows_ahead])
        arrived_us = time.perf_counter() * 1e6
        if answered_us is not None:
            gaps.append((answered_us, arrived_us - answered_us))
        watch.taken.setdefault("arrived", []).append((arrived_us, 0.0))
        executor.join(SearchGroup(searches=searches, window=number, horizon=horizon))
        for _ in window:
            key, answered_us = found.get(timeout=WAIT_S)
            latency_us[key] = answered_us - arrived_us
    return tuple(latency_us[key] for key in sorted(latency_us))
