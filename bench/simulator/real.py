"""The same windows for real: the searcher's own planner, memory, engine and scoring over clusters on a disk, with a stopwatch.

Without Kafka and without documents, so that nothing else is in the figures. Whoever runs it holds BLAS to one thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from bench.data import Float32
from bench.simulator.arrivals import soonest
from bench.simulator.costs import Task
from bench.simulator.rig import Rig
from bench.simulator.shelf import Shelf, open_memory
from bench.simulator.stopwatch import Stopwatch
from bench.simulator.trace import Trace
from bench.simulator.ways import next_queries
from carpool.clock import SystemClock
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cache.cluster_cache import ClusterCache
from searcher.cache.cluster_memory import ClusterMemory
from searcher.events import NoEvents
from searcher.execution.cluster_major import ClusterMajor
from searcher.execution.executor import Executor, Found, Search, SearchGroup
from searcher.execution.query_by_query import QueryByQuery
from searcher.scoring_pool import ScoringPool

TOP_K = 10
WAIT_S = 60.0


class Answered(NamedTuple):
    """When a window arrived, and when the last of its queries was answered: microseconds of the performance counter."""

    arrived_us: float
    answered_us: float


class BlockNote(NamedTuple):
    """A block that was read: asked for, given to the kernel, and told of, in microseconds of the performance counter."""

    size_bytes: int
    pieces: int
    asked_us: float
    given_us: float
    ended_us: float


class RealRun(NamedTuple):
    """What a run did. `latency_us`: of each query in order, from the arrival of its window to its answer; `scored`: what was
    scored together, in the order of the calls of `score`; `blocks`: what each call of `end_block` was about."""

    bytes_read: int
    latency_us: tuple[float, ...]
    windows: tuple[Answered, ...]
    scored: tuple[tuple[Task, ...], ...]
    blocks: tuple[BlockNote, ...]
    search_thread: int
    watch: Stopwatch


class _Notes(NamedTuple):
    watch: Stopwatch
    scored: list[tuple[Task, ...]]
    blocks: list[BlockNote]


def run_windows(
    shelf: Shelf, rig: Rig, trace: Trace, questions: Float32, *, windows_ahead: int, threads: int
) -> RealRun:
    """Searches the windows of `trace` one after the other, each when the one before is answered, from an empty cache. Blocks.

    `questions`: (n, dim) float32, the vectors of its queries in their order.
    """
    metrics, notes = Metrics(), _Notes(Stopwatch(), [], [])
    found: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()

    def finish(search: Search, result: Found | None) -> None:
        assert result is not None and not result.skipped, f"query {search.key} was not searched whole"
        found.put((search.key, time.perf_counter() * 1e6))

    with ExitStack() as stack:
        memory = stack.enter_context(open_memory(shelf, rig.slices, rig.shape, metrics, NoEvents()))
        _watch_memory(memory, notes)
        pool = stack.enter_context(ScoringPool(threads))
        executor = _executor(shelf, rig, memory, pool, metrics, notes)
        thread = threading.Thread(target=executor.run, args=(finish,), daemon=True)
        thread.start()
        assert thread.ident is not None
        search_thread = thread.ident
        try:
            latency_us, windows = _ask(executor, rig, found, trace, questions, windows_ahead)
        finally:
            executor.stop()
            thread.join(WAIT_S)
        executor.check_integrity()
        count = metrics.registry.get_sample_value
        read = sum(count("carpool_bytes_read_total", {"purpose": purpose}) or 0 for purpose in ("demand", "prefetch"))
    return RealRun(int(read), latency_us, windows, tuple(notes.scored), tuple(notes.blocks), search_thread, notes.watch)


def _watch_memory(memory: ClusterMemory, notes: _Notes) -> None:
    """Writes down what reads cost on the search thread and on the engine's."""
    clock = SystemClock()
    end_block = notes.watch.timed("end_block", memory._end_block)

    def noted(token: int, error: Any, latency_us: int) -> None:
        block = memory._blocks[token]
        ended_us = time.perf_counter() * 1e6
        asked_us = ended_us - (clock.now_us() - block.load.started_us)
        size_bytes = sum(buffer.nbytes for buffer in block.buffers)
        notes.blocks.append(BlockNote(size_bytes, len(block.buffers), asked_us, ended_us - latency_us, ended_us))
        end_block(token, error, latency_us)

    start = memory.start
    owner: Any = memory
    owner._end_block = noted
    owner.start = lambda on_event: start(notes.watch.timed("told", on_event))
    notes.watch.watch(memory, "begin_read")


def _executor(
    shelf: Shelf, rig: Rig, memory: ClusterMemory, pool: ScoringPool, metrics: Metrics, notes: _Notes
) -> Executor:
    """Returns the executor of the rig's way, watched: when it scores, waits, and takes in windows."""
    watch, clock, events = notes.watch, SystemClock(), NoEvents()
    if not rig.way.by_cluster:
        reads = rig.query_by_query()
        _watch_steps(watch, reads)
        cache = ClusterCache(memory=memory, planner=reads, metrics=metrics)
        watch.watch(cache, "_next_arrival", alias="wait")
        one_by_one: Any = QueryByQuery(cache, clock, events)
        score = watch.timed("score", one_by_one._score)

        def score_one(cluster: ClusterId, search: Search, slot: int) -> None:
            notes.scored.append((Task(shelf.extents[cluster].row_count, len(memory.pages(cluster).pieces), 1),))
            score(cluster, search, slot)

        one_by_one._score = score_one
        executor: Executor = one_by_one
        return executor
    planner = rig.cluster_major()
    _watch_steps(watch, planner)
    watch.watch(planner, "next_substage")
    run = watch.timed("score", pool.run)

    def run_noted(scorings: Any, table: Any) -> Any:
        notes.scored.append(tuple(Task(s.pages.row_count, len(s.pages.pieces), len(s.slots)) for s in scorings))
        return run(scorings, table)

    changed: Any = pool
    changed.run = run_noted
    by_cluster = ClusterMajor(
        memory=memory,
        slices=rig.slices,
        planner=planner,
        pool=pool,
        metrics=metrics,
        clock=clock,
        events=events,
    )
    watch.watch(by_cluster, "_letters", alias="wait")
    return by_cluster


def _watch_steps(watch: Stopwatch, planner: Any) -> None:
    """Writes down the planner's steps by the name of their event."""
    step: Callable[[Any], Any] = planner.step
    timed: dict[str, Callable[[Any], Any]] = {}

    def step_timed(event: Any) -> Any:
        name = type(event).__name__
        return timed.setdefault(name, watch.timed(name, step))(event)

    planner.step = step_timed


def _ask(
    executor: Executor,
    rig: Rig,
    found: queue.SimpleQueue[tuple[int, float]],
    trace: Trace,
    questions: Float32,
    windows_ahead: int,
) -> tuple[tuple[float, ...], tuple[Answered, ...]]:
    latency_us: dict[int, float] = {}
    windows: list[Answered] = []
    for number, window in enumerate(trace.windows):
        first = number * len(window)
        horizon = soonest(trace.windows[number + 1 : number + 1 + windows_ahead]) if rig.way.by_cluster else {}
        groups = rig.way.groups(window)
        joining = []
        key = first
        for members, following in zip(groups, next_queries(window, groups), strict=True):
            searches = []
            for at in members:
                searches.append(Search(key=key, vector=questions[first + at], clusters=window[at], top_k=TOP_K))
                key += 1
            joining.append(SearchGroup(searches=tuple(searches), window=number, next_query=following, horizon=horizon))
        in_order = [at for members in groups for at in members]
        arrived_us = answered_us = time.perf_counter() * 1e6
        for group in joining:
            executor.join(group)
        for _ in window:
            key, answered_us = found.get(timeout=WAIT_S)
            latency_us[first + in_order[key - first]] = answered_us - arrived_us
        windows.append(Answered(arrived_us, answered_us))
    return tuple(latency_us[number] for number in sorted(latency_us)), tuple(windows)
