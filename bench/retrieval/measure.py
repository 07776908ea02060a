"""The measurement in a contestant's process: open it, then a closed loop from a cold start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from bench.baselines.contestant import (
    WINDOWS_AHEAD,
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
from bench.core.spread import Spread, spread
from bench.retrieval.kernel import disk_times, process_read_bytes

OnAnswer = Callable[[int], None]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a phase used.

    `kernel_read_bytes`: by this process; `disk_*`: of the device, for all processes; `own`: by the
    contestant's own counters.
    """

    duration_us: int
    kernel_read_bytes: int
    disk_read_bytes: int | None
    disk_busy_us: int | None
    own: ContestantCounters


class ContestantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in a contestant's process: `opening` it, then the closed `loop`.

    Latencies are from the arrival of the window to the answer. `first_answer_us`: since the process
    was started; `life_read_bytes`: all that the process read, libraries included.
    """

    queries: int
    latency_ms: Spread
    opening: Usage
    loop: Usage
    first_answer_us: int
    life_read_bytes: int

    @property
    def queries_per_s(self) -> float:
        """Queries answered a second, from the first arrival to the last answer."""
        return self.queries / max(self.loop.duration_us, 1) * 1e6


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
    before = _counters(ContestantCounters(), data.index_dir)
    contestant.open(data, limits)
    _check_cache(contestant.counters().cache_bytes, limits.cache_bytes)
    opened = _counters(contestant.counters(), data.index_dir)
    answers = ClosedLoopAnswers(len(data.queries), data.top_k)
    for window in windows_of(data, limits.window):
        answers.ask(window, monotonic_us())
        for result in contestant.search(window):
            answers.add(result, monotonic_us())
            on_answer(len(answers.latencies_us))
        answers.end_window()
    figures = ContestantFigures(
        queries=len(data.queries),
        latency_ms=cast(Spread, spread(us / 1_000 for us in answers.latencies_us)),
        opening=_used(before, opened),
        loop=_used(opened, _counters(contestant.counters(), data.index_dir)),
        first_answer_us=answers.first_us - spawned_us,
        life_read_bytes=process_read_bytes(),
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


def _counters(own: ContestantCounters, path: Path) -> Usage:
    """All counters now, with those of the disk of `path`; `duration_us` is the present time."""
    disk = disk_times(path)
    return Usage(
        duration_us=monotonic_us(),
        kernel_read_bytes=process_read_bytes(),
        disk_read_bytes=None if disk is None else disk.read_bytes,
        disk_busy_us=None if disk is None else disk.busy_us,
        own=own,
    )


def _used(before: Usage, after: Usage) -> Usage:
    """What was used between two looks at the counters; `cache_bytes` is of the second."""
    own = _difference(after.own, before.own) | {"cache_bytes": after.own.cache_bytes}
    return Usage(**_difference(after, before) | {"own": ContestantCounters(**own)})


def _difference(after: msgspec.Struct, before: msgspec.Struct) -> dict[str, Any]:
    return {
        name: value - (getattr(before, name) or 0) if isinstance(value, int) else value
        for name, value in msgspec.structs.asdict(after).items()
    }
