"""The measurement in a contestant's process: open it, then a closed loop from a cold start."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import numpy as np

from bench.baselines.contestant import (
    AskedQuery,
    AskedWindow,
    Contestant,
    ContestantCounters,
    ContestantError,
    FoundRows,
    Int64,
    Limits,
    SearchData,
)
from bench.core.memory import memory_of
from bench.core.spread import Spread, spread
from bench.retrieval.kernel import DiskTimes, disk_times, process_read_bytes

OnAnswer = Callable[[int], None]
WINDOWS_AHEAD = 4
"""Windows that the grouper reads ahead by default."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a phase used.

    `kernel_read_bytes`: by this process; `disk_*`: of the device, for all processes; `own`: by the
    contestant's own counters.
    """

    duration_us: int
    cpu_us: int
    kernel_read_bytes: int
    disk_read_bytes: int | None
    disk_busy_us: int | None
    own: ContestantCounters


class ClosedLoopFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The closed loop. Latencies are from the arrival of the window to the answer."""

    queries: int
    windows: int
    latency_ms: Spread
    usage: Usage

    @property
    def queries_per_s(self) -> float:
        """Queries answered a second, from the first arrival to the last answer."""
        return self.queries / max(self.usage.duration_us, 1) * 1e6


class ContestantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in a contestant's process.

    `start_us`, `first_answer_us`: since the process was started; `life_read_bytes`: all that the
    process read, libraries included; `anonymous_bytes`: its own memory at the end.
    """

    start_us: int
    opening: Usage
    first_answer_us: int
    closed: ClosedLoopFigures
    life_read_bytes: int
    anonymous_bytes: int


def monotonic_us() -> int:
    """Returns CLOCK_MONOTONIC in microseconds, the same in every process of a machine."""
    return time.monotonic_ns() // 1_000


def windows_of(data: SearchData, size: int) -> Iterator[AskedWindow]:
    """Yields the queries of `data` in windows of `size`, the last one shorter if need be."""
    starts = range(0, len(data.queries), size)
    for start in starts:
        rows = range(start, min(start + size, len(data.queries)))
        ahead = [at for at in starts if start < at <= start + WINDOWS_AHEAD * size]
        yield AskedWindow(
            tuple(AskedQuery(row, data.queries[row], data.probes[row]) for row in rows),
            tuple(data.probes[at : at + size] for at in ahead),
        )


def measure(
    contestant: Contestant,
    data: SearchData,
    limits: Limits,
    *,
    spawned_us: int,
    on_answer: OnAnswer,
) -> tuple[ContestantFigures, Int64]:
    """Returns what was measured, and the ids that were found: (n, top_k) int64, -1 where none.

    Raises `ContestantError` where the contestant breaks the rules, and what it raises.
    """
    start_us = monotonic_us() - spawned_us
    meter = _Meter(contestant, data.index_dir)
    contestant.open(data, limits)
    _check_cache(contestant.counters().cache_bytes, limits.cache_bytes)
    opening = meter.lap()
    answers = ClosedLoopAnswers(len(data.queries), data.top_k)
    windows = 0
    for window in windows_of(data, limits.window):
        windows += 1
        answers.ask(window, monotonic_us())
        for result in contestant.search(window):
            answers.add(result, monotonic_us())
            on_answer(len(answers.latencies_us))
        answers.end_window()
    usage = meter.lap()
    figures = ContestantFigures(
        start_us=start_us,
        opening=opening,
        first_answer_us=answers.first_us - spawned_us,
        closed=ClosedLoopFigures(
            queries=len(data.queries),
            windows=windows,
            latency_ms=cast(Spread, spread(us / 1_000 for us in answers.latencies_us)),
            usage=usage,
        ),
        life_read_bytes=process_read_bytes(),
        anonymous_bytes=memory_of(os.getpid()).anonymous_bytes,
    )
    return figures, answers.ids


class ClosedLoopAnswers:
    """The answers of a closed loop, audited: each query that was asked has exactly one."""

    def __init__(self, queries: int, top_k: int) -> None:
        self.ids = np.full((queries, top_k), -1, dtype=np.int64)
        self.latencies_us: list[int] = []
        self.first_us = 0
        self._waiting: set[int] = set()
        self._asked_us = 0

    def ask(self, window: AskedWindow, now_us: int) -> None:
        """Records that a window arrives."""
        self._waiting = {query.number for query in window.queries}
        self._asked_us = now_us

    def add(self, result: FoundRows, now_us: int) -> None:
        """Records an answer. Raises `ContestantError` for one that is not expected."""
        if result.number not in self._waiting:
            raise ContestantError(
                f"query {result.number} has no answer to come: it was answered, or not asked"
            )
        if len(result.rows) > self.ids.shape[1]:
            raise ContestantError(f"query {result.number} has {len(result.rows)} ids: over top_k")
        self._waiting.remove(result.number)
        self.ids[result.number, : len(result.rows)] = result.rows
        self.first_us = self.first_us or now_us
        self.latencies_us.append(now_us - self._asked_us)

    def end_window(self) -> None:
        """Raises `ContestantError` where a query of the window has no answer."""
        if self._waiting:
            raise ContestantError(f"{len(self._waiting)} queries of a window were not answered")


def _check_cache(cache_bytes: int | None, cache_bytes_max: int | None) -> None:
    """Raises `ContestantError` where a contestant's cache is larger than its limit, or unknown."""
    if cache_bytes_max is None:
        return
    if cache_bytes is None:
        raise ContestantError("it does not report how many bytes it has reserved for clusters")
    if cache_bytes > cache_bytes_max:
        raise ContestantError(
            f"it has reserved {cache_bytes} bytes for clusters, and its limit is {cache_bytes_max}"
        )


class _Look(NamedTuple):
    now_us: int
    cpu_us: int
    read_bytes: int
    disk: DiskTimes | None


class _Meter:
    """Laps of time, CPU and bytes."""

    def __init__(self, contestant: Contestant, path: Path) -> None:
        self._contestant = contestant
        self._path = path
        self._last = self._look()
        self._own = ContestantCounters()

    def lap(self) -> Usage:
        """Returns what was used since the last lap."""
        own, now = self._contestant.counters(), self._look()
        before, own_before = self._last, self._own
        self._last, self._own = now, own
        disk = None if now.disk is None or before.disk is None else (now.disk, before.disk)
        return Usage(
            duration_us=now.now_us - before.now_us,
            cpu_us=now.cpu_us - before.cpu_us,
            kernel_read_bytes=now.read_bytes - before.read_bytes,
            disk_read_bytes=disk[0].read_bytes - disk[1].read_bytes if disk else None,
            disk_busy_us=disk[0].busy_us - disk[1].busy_us if disk else None,
            own=counted_since(own, own_before),
        )

    def _look(self) -> _Look:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_us = int((used.ru_utime + used.ru_stime) * 1e6)
        return _Look(monotonic_us(), cpu_us, process_read_bytes(), disk_times(self._path))


def counted_since(now: ContestantCounters, before: ContestantCounters) -> ContestantCounters:
    """Returns the difference of two looks at the same counters; `cache_bytes` of the second."""
    differences = {
        name: None if value is None else value - (getattr(before, name) or 0)
        for name, value in msgspec.structs.asdict(now).items()
    }
    return ContestantCounters(**differences | {"cache_bytes": now.cache_bytes})
