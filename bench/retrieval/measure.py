"""What happens in a contestant's process: open it, a closed loop from cold, then the search for the
rate that it holds.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import numpy as np

from bench.core.memory import memory_of
from bench.core.spread import Spread, spread
from bench.retrieval.arrivals import ClosedLoop, OpenLoop, monotonic_us, poisson_due_us
from bench.retrieval.contestant import (
    Contestant,
    ContestantError,
    Counters,
    Dataset,
    Int64,
    Limits,
    Result,
)
from bench.retrieval.kernel import DiskTimes, disk_times, process_read_bytes
from bench.retrieval.rates import RateFound, RateSearch

OnAnswer = Callable[[int], None]
RATE_QUERIES_MIN = 500
"""Of fewer, the 99th percentile is the fifth worst or worse: one pause decides."""


class OpenLoopPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the highest rate is sought. `p99_max_ms`: the target; `try_s` and `queries_min`: how long
    a rate is held, whichever is longer, up to `queries_max` queries; `total_s`: no new rate is
    tried after that.
    """

    p99_max_ms: float = 100.0
    try_s: float = 8.0
    queries_min: int = RATE_QUERIES_MIN
    queries_max: int = 2_000
    total_s: float = 60.0
    tries_max: int = 7


class RateTried(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that was tried. `latency_ms`: of what was answered; `late`: answers over the target; a
    rate that can no longer hold it is given up early. `reused`: of the queries that were due, those
    that the closed loop or an earlier rate had asked.
    """

    rate_per_s: float
    held: bool
    queries: int
    late: int
    latency_ms: Spread
    reused: int = 0


class OpenLoopResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rate that holds the target, and how it was found."""

    p99_max_ms: float
    found: RateFound
    tries: tuple[RateTried, ...]
    is_out_of_time: bool


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """A phase. `kernel_read_bytes`, `disk_*`: by the kernel, the disk's for all processes together;
    `own`: by the contestant.
    """

    duration_us: int
    cpu_us: int
    kernel_read_bytes: int
    disk_read_bytes: int | None
    disk_busy_us: int | None
    own: Counters


class ClosedLoopResult(msgspec.Struct, frozen=True, kw_only=True):
    """The closed loop. Latencies from the arrival of the window to the moment when the harness had
    the answer.
    """

    queries: int
    windows: int
    drafts: int
    latency_ms: Spread
    usage: Usage

    @property
    def queries_per_s(self) -> float:
        """Queries answered a second, from the first arrival to the last answer."""
        return self.queries / max(self.usage.duration_us, 1) * 1e6


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a contestant's process measured. `start_us`, `first_answer_us`: from the start of its
    process; `anonymous_bytes`: its own memory at the end; `life_read_bytes`: all that it ever made
    the disk read, its libraries included.
    """

    start_us: int
    opening: Usage
    first_answer_us: int
    closed: ClosedLoopResult
    open_loop: OpenLoopResult | None
    life_read_bytes: int
    anonymous_bytes: int


class Answers:
    """The answers of a closed loop by query number, and what they took."""

    def __init__(self, query_count: int, top_k: int) -> None:
        """`query_count`: of the whole data set."""
        self.ids = np.full((query_count, top_k), -1, dtype=np.int64)
        self.latencies_us: list[int] = []
        self.drafts = 0
        self.first_us: int | None = None

    def add(self, result: Result, arrived_us: int, received_us: int) -> None:
        """Takes an answer that reached the harness at `received_us`. Raises `ContestantError` for
        one that cannot be.
        """
        if not arrived_us <= result.time_us <= received_us:
            raise ContestantError(
                f"query {result.query} arrived at {arrived_us}, was answered at {result.time_us} "
                f"and received at {received_us}"
            )
        if len(result.ids) > self.ids.shape[1]:
            raise ContestantError(
                f"query {result.query} got {len(result.ids)} ids, more than top_k"
            )
        if self.first_us is None:
            self.first_us = received_us
        if not result.is_final:
            self.drafts += 1
            return
        self.ids[result.query, : len(result.ids)] = result.ids
        self.latencies_us.append(received_us - arrived_us)


def measure(
    contestant: Contestant,
    dataset: Dataset,
    limits: Limits,
    *,
    numbers: list[int],
    open_numbers: list[int],
    open_plan: OpenLoopPlan | None,
    seed: int,
    spawned_us: int,
    on_answer: OnAnswer,
) -> tuple[Measured, Int64]:
    """Returns what was measured, and the ids of the closed loop: (queries of the data set, top_k)
    int64, -1 where none.

    `numbers`: queries of the closed loop in order of arrival; `open_numbers`: those of the open
    loop. Raises `ContestantError` when the contestant breaks the rules, and whatever it raises.
    """
    start_us = monotonic_us() - spawned_us
    meter = _Meter(contestant, dataset.index_dir)
    contestant.open(dataset, limits)
    _check_cache(contestant.counters().cache_bytes, limits.cache_bytes)
    opening = meter.lap()
    answers = Answers(len(dataset.queries), dataset.top_k)
    loop = ClosedLoop(dataset, numbers, window=limits.window)
    windows = -(-len(numbers) // limits.window)
    for result in contestant.run(loop):
        received_us = monotonic_us()
        arrived_us = (
            loop.answered(result.query) if result.is_final else loop.arrived_us(result.query)
        )
        answers.add(result, arrived_us, received_us)
        on_answer(len(answers.latencies_us))
    usage = meter.lap()
    if loop.owed or len(answers.latencies_us) != len(numbers) or answers.first_us is None:
        raise ContestantError(
            f"{len(answers.latencies_us)} of {len(numbers)} queries were answered when it said it "
            "was done"
        )
    latency = cast(Spread, spread(us / 1_000 for us in answers.latencies_us))
    closed = ClosedLoopResult(
        queries=len(numbers),
        windows=windows,
        drafts=answers.drafts,
        latency_ms=latency,
        usage=usage,
    )
    open_loop = None
    if open_plan is not None:
        rng = np.random.default_rng(seed)
        open_loop = find_rate(
            contestant, dataset, limits, open_plan, open_numbers, closed.queries_per_s, rng, numbers
        )
    measured = Measured(
        start_us=start_us,
        opening=opening,
        first_answer_us=answers.first_us - spawned_us,
        closed=closed,
        open_loop=open_loop,
        life_read_bytes=process_read_bytes(),
        anonymous_bytes=memory_of(os.getpid()).anonymous_bytes,
    )
    return measured, answers.ids


def _check_cache(cache_bytes: int | None, cache_bytes_max: int | None) -> None:
    """Raises `ContestantError` where a contestant has set aside more for clusters than it may, or
    does not say how much.
    """
    if cache_bytes_max is None:
        return
    if cache_bytes is None:
        raise ContestantError("it does not say how many bytes it has set aside for clusters")
    if cache_bytes > cache_bytes_max:
        raise ContestantError(
            f"it has set aside {cache_bytes} bytes for clusters, and may take {cache_bytes_max}"
        )


def find_rate(
    contestant: Contestant,
    dataset: Dataset,
    limits: Limits,
    plan: OpenLoopPlan,
    numbers: list[int],
    guess_per_s: float,
    rng: np.random.Generator,
    asked_before: Iterable[int] = (),
) -> OpenLoopResult:
    """Returns the highest Poisson rate whose p99 stays within the target. The contestant is warm;
    each rate has other queries as far as `numbers` reaches. `asked_before`: what the closed loop
    asked.
    """
    search = RateSearch(guess_per_s / 2, tries_max=plan.tries_max)
    deadline_us = monotonic_us() + int(plan.total_s * 1e6)
    tries: list[RateTried] = []
    used, asked = 0, set(asked_before)
    while (rate := search.next_rate()) is not None and monotonic_us() < deadline_us:
        wished = min(max(int(rate * plan.try_s), plan.queries_min), plan.queries_max, len(numbers))
        chosen = [numbers[(used + at) % len(numbers)] for at in range(wished)]
        used += wished
        due_us = poisson_due_us(wished, rate, rng)
        tried = _try_rate(
            contestant,
            OpenLoop(dataset, chosen, due_us=due_us, window=limits.window),
            rate,
            wished,
            plan.p99_max_ms,
        )
        tries.append(
            msgspec.structs.replace(tried, reused=sum(number in asked for number in chosen))
        )
        asked.update(chosen)
        search.judge(tried.held)
    return OpenLoopResult(
        p99_max_ms=plan.p99_max_ms,
        found=search.found(),
        tries=tuple(tries),
        is_out_of_time=search.next_rate() is not None,
    )


def _try_rate(
    contestant: Contestant, loop: OpenLoop, rate: float, wished: int, p99_max_ms: float
) -> RateTried:
    late_max = wished // 100  # more, and the 99th percentile is over the target whatever comes
    latencies_ms: list[float] = []
    late = 0
    for result in contestant.run(loop):
        if not result.is_final:
            continue
        latency_ms = (monotonic_us() - loop.answered(result.query)) / 1_000
        latencies_ms.append(latency_ms)
        late += latency_ms > p99_max_ms
        if late > late_max:
            loop.stop()
    if loop.owed:
        raise ContestantError(f"{loop.owed} queries were not answered when it said it was done")
    return RateTried(
        rate_per_s=rate,
        held=late <= late_max,
        queries=len(latencies_ms),
        late=late,
        latency_ms=cast(Spread, spread(latencies_ms)),
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
        self._own = Counters()

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
            own=since(own, own_before),
        )

    def _look(self) -> _Look:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_us = int((used.ru_utime + used.ru_stime) * 1e6)
        return _Look(monotonic_us(), cpu_us, process_read_bytes(), disk_times(self._path))


def since(now: Counters, before: Counters) -> Counters:
    """Returns what was counted between two looks at the same counters; `cache_bytes` and `others`
    as they stand at the second.
    """

    def difference(name: str) -> int | None:
        one, other = getattr(now, name), getattr(before, name)
        return None if one is None else one - (other or 0)

    return Counters(
        bytes_read=difference("bytes_read"),
        disk_busy_us=difference("disk_busy_us"),
        cache_hits=difference("cache_hits"),
        cache_misses=difference("cache_misses"),
        cache_bytes=now.cache_bytes,
        others=now.others,
    )
