"""The load generator: intended times, counts, and brokers that refuse."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.load import even, poisson, record_of, run_load
from producers.build_query import QueryRecord, QuestionArgs
from producers.errors import PublishError
from producers.publish_queries import Placed
from producers.read_questions import Question
from schemas.codec import decode_query
from schemas.query import Query
from schemas.record import Source

QUESTIONS = tuple(Question(id=f"q{row}", text=f"question {row}") for row in range(3))
START_US = 1_000_000_000


class HandClock:
    """Advances by each sleep, and by `cost_us` at each reading."""

    def __init__(self, cost_us: int = 0) -> None:
        self.at_us = START_US
        self.cost_us = cost_us

    def now_us(self) -> int:
        self.at_us += self.cost_us
        return self.at_us

    def host_lead_us(self) -> int:
        return 0

    def sleep(self, duration_s: float) -> None:
        self.at_us += max(1, round(duration_s * 1_000_000))


class Broker:
    """Refuses the record number `full`, and loses number `lost`."""

    def __init__(self, *, full: int = -1, lost: int = -1) -> None:
        self.records: list[QueryRecord] = []
        self._calls = 0
        self._full = full
        self._lost = lost

    def send(self, record: QueryRecord, on_placed: Placed) -> None:
        call = self._calls
        self._calls += 1
        if call == self._full:
            raise PublishError("the queue is full")
        self.records.append(record)
        if call == self._lost:
            on_placed(None, PublishError("the leader is gone"))
        else:
            on_placed((0, call), None)

    def flush(self, timeout_s: float) -> int:
        return 0

    def queries(self) -> list[Query]:
        return [
            decode_query(each.value, each.headers, Source(topic="t", partition=0, offset=0))
            for each in self.records
        ]


def load(
    broker: Broker,
    questions: Sequence[Question] = QUESTIONS,
    cost_us: int = 0,
    **asked: Unpack[QuestionArgs],
) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Sends the questions, ten a second, with a clock moved by hand.

    Returns each id, when it was due and when it was sent; and the problems.
    """
    clock, sent = HandClock(cost_us), list[tuple[str, int, int]]()
    problems = run_load(
        broker,
        questions,
        even(10),
        record_of=partial(record_of, **asked),
        clock=clock,
        on_sent=lambda query_id, due_us: sent.append((query_id, due_us, clock.at_us)),
        sleep=clock.sleep,
    )
    return sent, problems


def test_each_question_is_sent_at_its_intended_time_under_its_own_id() -> None:
    broker = Broker()
    sent, problems = load(broker, top_k=4)
    assert [due_us - START_US for _, due_us, _ in sent] == [0, 100_000, 200_000]
    assert [sent_us for *_, sent_us in sent] == [due_us for _, due_us, _ in sent]
    assert [query_id for query_id, *_ in sent] == ["q0", "q1", "q2"]
    found = [(each.query_id, each.top_k) for each in broker.queries()]
    assert found == [("q0", 4), ("q1", 4), ("q2", 4)]
    assert problems == []


def test_a_machine_that_is_too_slow_sends_late_but_sends_all() -> None:
    # Each look at the clock costs 160 ms and each question looks once: 100 ms a question cannot be
    # kept.
    sent, _ = load(Broker(), QUESTIONS * 3, cost_us=160_000)
    gaps = {later - earlier for (_, earlier, _), (_, later, _) in itertools.pairwise(sent)}
    assert gaps == {100_000}  # what is intended does not shift with what happens
    _, due_us, sent_us = sent[-1]
    assert sent_us > due_us


def test_refused_and_lost_questions_are_told_and_delay_nothing() -> None:
    sent, problems = load(Broker(full=1, lost=2))
    assert [query_id for query_id, *_ in sent] == ["q0", "q2"]
    assert problems == ["the queue is full", "the leader is gone"]
    sent, (problem,) = load(Broker(), (Question(text=" "),))
    assert sent == [] and "blank" in problem


def test_questions_without_an_id_get_one_each() -> None:
    sent, _ = load(Broker(), (Question(text="a"),) * 3)
    assert len({query_id for query_id, *_ in sent}) == 3


# ---- when questions arrive: schedules are pure, seeded, and keep their rate


RATES = st.floats(min_value=0.01, max_value=10_000)


@given(rate=RATES, seed=st.integers(0, 2**32))
def test_a_poisson_schedule_never_runs_backwards_and_is_the_same_for_a_seed(
    rate: float, seed: int
) -> None:
    times = list(islice(poisson(rate, seed), 50))
    assert times == sorted(times)
    assert times[0] >= 0
    assert times == list(islice(poisson(rate, seed), 50))


def test_a_poisson_schedule_keeps_its_rate_and_spread_over_many_arrivals() -> None:
    times = list(islice(poisson(50, seed=7), 20_000))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # The mean of an exponential of rate 50 is 20,000 us, and so is its deviation; of 20,000 both
    # are within 3 %.
    assert statistics.mean(gaps) == pytest.approx(20_000, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(20_000, rel=0.03)


@given(rate=RATES, count=st.integers(1, 200))
def test_an_even_schedule_does_not_drift(rate: float, count: int) -> None:
    times = list(islice(even(rate), count))
    assert times[0] == 0
    assert abs(times[-1] - (count - 1) * 1_000_000 / rate) <= 1
