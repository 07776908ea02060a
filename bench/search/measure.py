"""The measurement in a contestant's process: open it, then a closed loop from a cold start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

import msgspec
import numpy as np

from bench.core.spread import Spread, spread
from bench.search.contestants.contestant import (
    WINDOWS_AHEAD,
    AskedWindow,
    Contestant,
    ContestantError,
    Int64,
    Limits,
    SearchData,
)
from bench.search.kernel import agrees, process_read_bytes


class ContestantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in a contestant's process.

    Latencies are from the arrival of the window to the answer. `duration_us`, `read_bytes` (by the
    kernel) and `own_bytes` (by the contestant) are of the closed loop; `loading_bytes`: of opening,
    by the kernel. `first_answer_us`: since the process was started.
    """

    queries: int
    latency_ms: Spread
    duration_us: int
    read_bytes: int
    own_bytes: int | None
    loading_bytes: int
    first_answer_us: int

    @property
    def queries_per_s(self) -> float:
        """Queries answered a second, from the first arrival to the last answer."""
        return self.queries / max(self.duration_us, 1) * 1e6

    @property
    def bytes_agree(self) -> bool:
        """Whether the kernel's count of bytes agrees with the contestant's own, if it counts."""
        return self.own_bytes is None or agrees(self.own_bytes, self.read_bytes)


def monotonic_us() -> int:
    """Returns CLOCK_MONOTONIC in microseconds, the same in every process of a machine."""
    return time.monotonic_ns() // 1_000


def windows_of(data: SearchData, size: int) -> Iterator[AskedWindow]:
    """Yields the queries of `data` in windows of `size`, the last one shorter if need be."""
    starts = range(0, len(data.queries), size)
    for start in starts:
        ahead = [at for at in starts if start < at <= start + WINDOWS_AHEAD * size]
        yield AskedWindow(
            start,
            data.queries[start : start + size],
            data.probes[start : start + size],
            tuple(data.probes[at : at + size] for at in ahead),
        )


def measure(
    contestant: Contestant, data: SearchData, limits: Limits, *, spawned_us: int
) -> tuple[ContestantFigures, Int64]:
    """Returns what was measured, and the ids that were found: (n, top_k) int64, -1 where none.

    Raises `ContestantError` where a query has not exactly one answer of at most top_k ids, and what
    the contestant raises.
    """
    at_start = process_read_bytes()
    contestant.open(data, limits)
    opened_bytes, own_opened, opened_us = (
        process_read_bytes(),
        contestant.bytes_read(),
        monotonic_us(),
    )
    ids = np.full((len(data.queries), data.top_k), -1, np.int64)
    latencies_us: list[int] = []
    first_us = 0
    for window in windows_of(data, limits.window):
        asked_us = monotonic_us()
        waiting = set(range(window.first, window.first + len(window.vectors)))
        for number, rows in contestant.search(window):
            now_us = monotonic_us()
            if number not in waiting or len(rows) > data.top_k:
                raise ContestantError(f"query {number} was not asked, or answered, or over top_k")
            waiting.remove(number)
            ids[number, : len(rows)] = rows
            latencies_us.append(now_us - asked_us)
            first_us = first_us or now_us
        if waiting:
            raise ContestantError(f"{len(waiting)} queries of a window were not answered")
    ended_us, own_ended = monotonic_us(), contestant.bytes_read()
    figures = ContestantFigures(
        queries=len(data.queries),
        latency_ms=cast(Spread, spread(us / 1_000 for us in latencies_us)),
        duration_us=ended_us - opened_us,
        read_bytes=process_read_bytes() - opened_bytes,
        own_bytes=None if own_ended is None else own_ended - (own_opened or 0),
        loading_bytes=opened_bytes - at_start,
        first_answer_us=first_us - spawned_us,
    )
    return figures, ids
