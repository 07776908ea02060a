"""The same windows for real: the searcher's own search plane over an index, with a stopwatch.

Without Kafka and without documents, so that nothing else is in the figures. Whoever runs it holds
BLAS to one thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.data.evaluation import Float32
from bench.simulator.arrivals import soonest
from bench.simulator.costs import Task
from bench.simulator.rig import Parts, Rig
from bench.simulator.stopwatch import Stopwatch
from bench.simulator.trace import Trace
from bench.simulator.watched import BlockNote, ReadEnds, WatchedEngine
from bench.simulator.ways import Way, next_queries
from carpool.clock import SystemClock
from carpool.errors import RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.executor import Executor, Search, SearchGroup, SearchResult
from searcher.store.engine import BlockEngine
from searcher.store.factory import open_engine
from searcher.store.files import SegmentFiles

TOP_K = 10
WAIT_S = 60.0


class Answered(NamedTuple):
    """When a window arrived, and when the last of its queries was answered: microseconds of the
    performance counter.
    """

    arrived_us: float
    answered_us: float


class RealRun(NamedTuple):
    """What a run did. `latency_us`: of each query in order, from the arrival of its window to its
    answer; `scored`: what was scored together, in the order of the calls of `score`; `blocks`: what
    each call of `end_block` was about.
    """

    bytes_read: int
    latency_us: tuple[float, ...]
    windows: tuple[Answered, ...]
    scored: tuple[tuple[Task, ...], ...]
    blocks: tuple[BlockNote, ...]
    search_thread: int
    watch: Stopwatch


def run_windows(rig: Rig, trace: Trace, questions: Float32, *, windows_ahead: int) -> RealRun:
    """Searches the windows of `trace` one after the other, each when the one before is answered,
    from an empty cache. Blocks.

    `questions`: (n, dim) float32, the vectors of its queries in their order. Raises what opening
    the plane raises, and `RetryableError` where a query was not answered, or not from all of its
    clusters.
    """
    metrics, watch = Metrics(), Stopwatch()
    blocks: list[BlockNote] = []
    found: queue.SimpleQueue[tuple[int, float] | BaseException] = queue.SimpleQueue()

    def engine(files: SegmentFiles) -> BlockEngine:
        settings = rig.settings
        depths = {
            "depth": settings.reads_in_flight_max,
            "prefetch_depth": settings.prefetch_reads_max,
        }
        return WatchedEngine(
            open_engine(settings.engine, files, **depths, clock=SystemClock()), watch, blocks
        )

    def finish(search: Search, result: SearchResult | None) -> None:
        if result is None or result.skipped:
            why = "; ".join(map(str, result.errors)) if result is not None else "it was dropped"
            raise RetryableError(
                f"query {search.key} was not searched whole, so nothing can be compared: {why}"
            )
        found.put((search.key, time.perf_counter() * 1e6))

    with rig.open(metrics, events=ReadEnds(watch), engine=engine) as parts:
        scored = _watch(parts, watch)
        executor = parts.plane.executor

        def search() -> None:
            try:
                executor.run(finish)
            except BaseException as error:  # told by the thread that waits for answers
                found.put(error)

        thread = threading.Thread(target=search, name="search", daemon=True)
        thread.start()
        assert thread.ident is not None
        try:
            latency_us, windows = _ask(executor, rig.way, found, trace, questions, windows_ahead)
        finally:
            executor.stop()
            thread.join(WAIT_S)
        executor.check_integrity()
        count = metrics.registry.get_sample_value
        read = sum(
            count("carpool_bytes_read_total", {"purpose": purpose}) or 0
            for purpose in ("demand", "prefetch")
        )
        return RealRun(
            int(read), latency_us, windows, tuple(scored), tuple(blocks), thread.ident, watch
        )


def _watch(parts: Parts, watch: Stopwatch) -> list[tuple[Task, ...]]:
    """Has the plane watched: when it plans, scores, waits, and takes in windows. What is scored is
    in what is returned.
    """
    scored: list[tuple[Task, ...]] = []
    memory, executor, pool = parts.plane.memory, parts.plane.executor, parts.plane.pool
    watch.watch(memory, "begin_read")
    _watch_steps(watch, parts.planner)
    by_query: Any = getattr(executor, "_cache", None)
    if by_query is not None:
        watch.watch(by_query, "_next_arrival", alias="wait")
        one_by_one: Any = executor
        score = watch.timed("score", one_by_one._score)

        def score_one(cluster: ClusterId, search: Search, slot: int) -> None:
            pages = memory.pages(cluster)
            scored.append((Task(pages.row_count, len(pages.pieces), 1),))
            score(cluster, search, slot)

        one_by_one._score = score_one
        return scored
    watch.watch(parts.planner, "next_substage")
    watch.watch(executor, "_messages", alias="wait")
    run = watch.timed("score", pool.run)

    def run_noted(scorings: Any, asked: Any, table: Any) -> Any:
        scored.append(
            tuple(Task(s.pages.row_count, len(s.pages.pieces), len(s.members)) for s in scorings)
        )
        return run(scorings, asked, table)

    changed: Any = pool
    changed.run = run_noted
    return scored


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
    way: Way,
    found: queue.SimpleQueue[tuple[int, float] | BaseException],
    trace: Trace,
    questions: Float32,
    windows_ahead: int,
) -> tuple[tuple[float, ...], tuple[Answered, ...]]:
    latency_us: dict[int, float] = {}
    windows: list[Answered] = []
    for number, window in enumerate(trace.windows):
        first = number * len(window)
        horizon = (
            soonest(trace.windows[number + 1 : number + 1 + windows_ahead])
            if way.by_cluster
            else {}
        )
        groups = way.groups(window)
        joining = []
        key = first
        for members, following in zip(groups, next_queries(window, groups), strict=True):
            searches = []
            for at in members:
                searches.append(
                    Search(key=key, vector=questions[first + at], clusters=window[at], top_k=TOP_K)
                )
                key += 1
            joining.append(
                SearchGroup(
                    searches=tuple(searches), window=number, next_query=following, horizon=horizon
                )
            )
        in_order = [at for members in groups for at in members]
        arrived_us = answered_us = time.perf_counter() * 1e6
        for group in joining:
            executor.join(group)
        for _ in window:
            key, answered_us = _answer(found)
            latency_us[first + in_order[key - first]] = answered_us - arrived_us
        windows.append(Answered(arrived_us, answered_us))
    return tuple(latency_us[number] for number in sorted(latency_us)), tuple(windows)


def _answer(found: queue.SimpleQueue[tuple[int, float] | BaseException]) -> tuple[int, float]:
    try:
        answer = found.get(timeout=WAIT_S)
    except queue.Empty:
        raise RetryableError(
            f"no query was answered for {WAIT_S:.0f} s: the disk hangs, or others have it for "
            "themselves, as they do before a "
            "process of idle I/O priority. Check the disk, and run it again while nobody else reads"
        ) from None
    if isinstance(answer, BaseException):
        raise answer
    return answer
