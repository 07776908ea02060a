"""How many requests a server gets at once: the controller against simulated servers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from generator.plan.concurrency import (
    ConcurrencyBounds,
    ConcurrencyController,
    LoadSample,
    ServerLoad,
)

SECOND_US = 1_000_000
ANSWER_TOKENS = 100
TOKEN_S = 0.025
KNEES = (4, 16, 64, 100, 128, 200)
BOUNDS = ConcurrencyBounds(first=8, limit_max=512, ttft_us_max=10 * SECOND_US)

Curve = Callable[[int], float]
"""Output tokens a second by the number of requests in progress."""


def sharp(knee: int, token_s: float = TOKEN_S) -> Curve:
    """A rate that rises linearly to the knee, and is flat from there."""
    return lambda n: min(n, knee) / token_s


def soft(knee: int) -> Curve:
    """A rate that rises ever slower to the knee, since each more request slows the others."""
    return lambda n: min(n, knee) / (TOKEN_S * (1 + 0.5 * min(1, n / knee)))


class SimulatedServer:
    """A server under a backlog of `asked` prompts at a time, seen once a second."""

    def __init__(self, curve: Curve, bounds: ConcurrencyBounds = BOUNDS, *, noise: float = 0.0):
        self.curve, self.noise = curve, noise
        self.controller = ConcurrencyController(bounds)
        self.asked: float = math.inf
        self.ttft_s: Callable[[int], float] = lambda n: 0.2
        self.pending: Callable[[int], int] = lambda n: 0
        self.load: Callable[[int], ServerLoad | None] = lambda n: None
        self.limits: list[int] = []
        self._random = random.Random(7)
        self._now_us = 1_000 * SECOND_US
        self._in_flight = 0
        self._answers = 0.0

    def run(self, seconds: int) -> list[int]:
        """Returns the limit of each second."""
        for _ in range(seconds):
            self._now_us += SECOND_US
            sent = max(0, int(min(self.controller.limit, self.asked)) - self._in_flight)
            self._in_flight += sent
            rate = self.curve(self._in_flight) if self._in_flight else 0.0
            rate *= math.exp(self._random.gauss(0, self.noise))
            self._answers += rate / ANSWER_TOKENS
            answers = min(int(self._answers), self._in_flight)
            self._answers -= answers
            refilled = max(0, min(answers, int(min(self.asked, self.controller.limit))))
            ttft_us = int(self.ttft_s(self._in_flight) * SECOND_US)
            limit = self.controller.limit
            self._in_flight = min(self._in_flight, max(limit, self._in_flight - answers))
            self.controller.step(
                LoadSample(
                    in_flight=self._in_flight,
                    pending=self.pending(self._in_flight),
                    output_tokens=int(rate),
                    answers=answers,
                    ttfts_us=(ttft_us,) * (sent + refilled),
                    load=self.load(self._in_flight),
                ),
                self._now_us,
            )
            self.limits.append(self.controller.limit)
        return self.limits[-seconds:]

    def share_of_best(self, seconds: int) -> float:
        """Runs, and returns the rate without noise as a share of the best one."""
        rates = [self.curve(limit) for limit in self.run(seconds)]
        return sum(rates) / len(rates) / max(self.curve(n) for n in range(1, 513))


def test_it_finds_each_knee_within_60_seconds() -> None:
    for knee in KNEES:
        for curve in (sharp(knee), soft(knee)):
            server = SimulatedServer(curve)
            server.run(60)
            assert server.share_of_best(60) >= 0.9, f"knee {knee}"


def test_it_does_not_stay_far_above_the_knee() -> None:
    for knee in KNEES:
        server = SimulatedServer(sharp(knee))
        server.run(600)
        assert server.controller.limit <= 2 * knee


def test_a_short_backlog_is_no_evidence() -> None:
    server = SimulatedServer(sharp(128))
    server.asked = 6
    assert set(server.run(300)) == {8}


def test_after_a_short_backlog_it_is_where_it_was_proven() -> None:
    server = SimulatedServer(sharp(128))
    server.run(60)
    server.asked = 6
    proven = server.run(60)[-1]
    assert 91 <= proven <= 256
    server.asked = math.inf
    assert server.share_of_best(60) >= 0.9


def test_it_comes_back_when_the_server_slows_down_and_rises_again() -> None:
    server = SimulatedServer(sharp(128))
    server.run(120)
    server.curve = sharp(32)
    assert server.run(300)[-1] <= 64
    server.curve = sharp(128)
    server.run(300)
    assert server.share_of_best(60) >= 0.9


def test_a_server_that_is_slower_at_any_limit_keeps_its_limit() -> None:
    server = SimulatedServer(sharp(128))
    server.run(120)
    server.curve = sharp(128, token_s=4 * TOKEN_S)
    server.run(200)
    assert server.share_of_best(100) >= 0.9


def test_noise_does_not_collapse_it() -> None:
    for noise in (0.05, 0.1, 0.2):
        server = SimulatedServer(soft(128), noise=noise)
        server.run(60)
        assert server.share_of_best(600) >= 0.9, f"noise {noise}"


def test_the_time_to_first_token_stays_within_its_bound() -> None:
    server = SimulatedServer(sharp(512))
    server.ttft_s = lambda n: n / 10
    server.run(120)
    late = [limit > 100 for limit in server.run(300)]
    assert sum(late) / len(late) < 0.1
    assert server.controller.limit >= 50


def test_first_tokens_that_begin_to_come_too_late_lower_the_limit() -> None:
    server = SimulatedServer(sharp(512))
    assert server.run(120)[-1] >= 100
    server.ttft_s = lambda n: n / 5
    assert 8 <= server.run(200)[-1] <= 70


def test_no_request_is_added_while_most_wait_for_their_first_token() -> None:
    server = SimulatedServer(sharp(512))
    server.pending = lambda n: n
    assert max(server.run(300)) == 8


def test_a_server_that_is_slow_with_any_number_keeps_the_first_limit() -> None:
    server = SimulatedServer(sharp(512))
    server.ttft_s = lambda n: 60.0
    limits = server.run(300)
    assert set(limits) == {6, 8}  # 6 is tried
    assert limits.count(8) >= 200


def test_one_slow_first_token_is_no_overload() -> None:
    server = SimulatedServer(sharp(8))
    server.run(100)
    before = server.controller.limit
    server.ttft_s = lambda n: 60.0
    server.asked = 0
    server.run(1)
    assert server.controller.limit == before


def test_it_halts_before_the_memory_of_the_server_is_full() -> None:
    server = SimulatedServer(sharp(512))
    server.load = lambda n: ServerLoad(running=n, waiting=0, kv_used=n / 100, preemptions=0)
    assert max(server.run(300)) <= 100
    assert server.controller.limit >= 60


def test_requests_that_are_taken_back_lower_the_limit() -> None:
    server = SimulatedServer(sharp(128))
    server.run(100)
    taken_back = 0

    def load(n: int) -> ServerLoad:
        nonlocal taken_back
        taken_back += n > 40
        return ServerLoad(running=n, waiting=0, kv_used=0.5, preemptions=taken_back)

    server.load = load
    server.run(200)
    assert 20 <= server.controller.limit <= 80


def test_requests_that_wait_at_the_server_end_the_rise() -> None:
    server = SimulatedServer(sharp(32))
    server.load = lambda n: ServerLoad(
        running=min(n, 32), waiting=max(0, n - 32), kv_used=0.1, preemptions=0
    )
    assert max(server.run(300)) <= 64


def test_a_busy_server_gets_less() -> None:
    controller = ConcurrencyController(BOUNDS)
    limits = [
        controller.step(
            LoadSample(
                in_flight=controller.limit, pending=0, output_tokens=0, answers=0, is_busy=True
            ),
            second * SECOND_US,
        )
        for second in range(1, 8)
    ]
    assert limits == [5, 3, 2, 1, 1, 1, 1]


def test_the_bound_of_the_limit_holds_for_the_first_one_too() -> None:
    bounds = ConcurrencyBounds(first=8, limit_max=4, ttft_us_max=SECOND_US)
    assert set(SimulatedServer(sharp(128), bounds).run(100)) <= {2, 3, 4}


loads = st.none() | st.builds(
    ServerLoad,
    running=st.integers(0, 600),
    waiting=st.integers(0, 600),
    kv_used=st.floats(0, 1),
    preemptions=st.integers(0, 3),
)
seen = st.tuples(
    st.integers(-3, 20),
    st.integers(0, 600),
    st.integers(0, 20_000),
    st.integers(0, 300),
    st.lists(st.integers(0, 30 * SECOND_US), max_size=30),
    st.booleans(),
    loads,
    st.integers(0, 10 * SECOND_US),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 64), st.integers(1, 512), st.lists(seen, max_size=80))
def test_whatever_is_seen_the_bounds_hold_and_the_same_is_decided_again(
    first: int, limit_max: int, steps: list[tuple[int, ...]]
) -> None:
    bounds = ConcurrencyBounds(first=first, limit_max=limit_max, ttft_us_max=SECOND_US)
    one, other = ConcurrencyController(bounds), ConcurrencyController(bounds)
    now_us = 0
    for more, pending, tokens, answers, ttfts, is_busy, load, passed_us in steps:
        now_us += passed_us
        sample = LoadSample(
            in_flight=max(0, one.limit + more),
            pending=pending,
            output_tokens=tokens,
            answers=answers,
            ttfts_us=tuple(ttfts),  # type: ignore[arg-type]
            is_busy=bool(is_busy),
            load=load,  # type: ignore[arg-type]
        )
        assert one.step(sample, now_us) == other.step(sample, now_us)
        assert 1 <= one.limit <= limit_max


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 400),
    st.floats(0.3, 1.0),
    st.floats(0.005, 0.2),
    st.integers(4, 32),
)
def test_a_curve_that_rises_to_a_knee_is_climbed(
    knee: int, power: float, token_s: float, first: int
) -> None:
    """The rate is a power of the number of requests, up to the knee."""
    bounds = ConcurrencyBounds(first=first, limit_max=512, ttft_us_max=10 * SECOND_US)
    server = SimulatedServer(lambda n: knee / token_s * (min(n, knee) / knee) ** power, bounds)
    server.run(600)
    assert server.share_of_best(300) >= 0.85
