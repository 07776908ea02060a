"""A real closed loop over the windows of a trace, and how long scoring took in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from bench.baselines.contestant import WINDOWS_AHEAD
from bench.core.plane_counts import bytes_read
from bench.data.evaluation import Float32
from bench.data.trace import Trace, soonest
from bench.simulator.plane import ComparedPlane
from carpool.errors import RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.executor import Search, SearchGroup
from searcher.local import SearchThread
from searcher.plan.slices import SliceId

TOP_K = 10
WAIT_S = 60.0


class RealRun(NamedTuple):
    """What a run did. `latency_us`: of each query, from the arrival of its window.

    `scoring_us`: the time of all sub-stages.
    """

    bytes_read: int
    latency_us: tuple[float, ...]
    scoring_us: int


def run_windows(compared: ComparedPlane, trace: Trace, questions: Float32) -> RealRun:
    """Searches the windows of `trace`, each when the last is answered, from an empty cache. Blocks.

    `questions`: (n, dim) float32, the vectors of its queries in their order. Raises what opening
    the plane raises, and `RetryableError` for a query without all of its clusters.
    """
    metrics, scored_us = Metrics(), list[int]()
    latency_us: dict[int, float] = {}
    thread = SearchThread(compared.open(metrics, scored_us.append))
    try:
        for number, window in enumerate(trace.windows):
            first = len(latency_us)
            searches = tuple(
                Search(
                    key=first + at,
                    vector=questions[first + at],
                    clusters=tuple(map(ClusterId, clusters)),
                    top_k=TOP_K,
                )
                for at, clusters in enumerate(window)
            )
            horizon = soonest(trace.windows[number + 1 : number + 1 + WINDOWS_AHEAD])
            arrived_s = time.perf_counter()
            thread.join(SearchGroup(searches=searches, window=number, horizon=_by_cluster(horizon)))
            for _ in window:
                key = _take(thread)
                latency_us[key] = (time.perf_counter() - arrived_s) * 1e6
    finally:
        thread.close()
    ordered = tuple(latency_us[key] for key in sorted(latency_us))
    return RealRun(sum(bytes_read(metrics)), ordered, sum(scored_us))


def _by_cluster(horizon: Mapping[SliceId, int]) -> dict[ClusterId, int]:
    """A horizon of clusters that a trace numbers as slices."""
    return {ClusterId(number): windows for number, windows in horizon.items()}


def _take(thread: SearchThread) -> int:
    """Returns the number of the next query that is answered."""
    try:
        search, result = thread.take(WAIT_S)
    except TimeoutError:
        raise RetryableError(
            f"no query was answered for {WAIT_S:.0f} s: the disk hangs, or other processes use all "
            "of it. Check the disk, and run it again while nothing else reads"
        ) from None
    if result is None or result.skipped:
        why = "; ".join(map(str, result.errors)) if result is not None else "it was dropped"
        raise RetryableError(
            f"query {search.key} was not searched whole, so nothing can be compared: {why}"
        )
    return search.key
