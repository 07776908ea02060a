"""How queries arrive: closed and open loops, by a clock that is moved by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.retrieval.arrivals import ClosedLoop, OpenLoop, poisson_due_us
from bench.retrieval.contestant import ContestantError, Counters, Dataset, Result
from bench.retrieval.measure import Answers, since


class HandClock:
    """Stands still unless somebody sleeps or moves it."""

    def __init__(self) -> None:
        self.time_us = 1_000

    def now_us(self) -> int:
        return self.time_us

    def sleep(self, duration_us: int) -> None:
        assert duration_us > 0
        self.time_us += duration_us


def test_the_next_window_appears_when_the_last_is_answered(dataset: Dataset) -> None:
    clock = HandClock()
    loop = ClosedLoop(dataset, [7, 3, 9, 1, 4], window=2, now_us=clock.now_us)
    first = loop.take()
    assert first is not None
    assert [query.number for query in first.queries] == [7, 3]
    assert np.array_equal(first.queries[0].clusters, dataset.probes[7])
    assert loop.take(timeout_us=5) is None
    assert loop.answered(7) == 1_000
    with pytest.raises(ContestantError, match="owes 1 finals"):
        loop.take()
    loop.answered(3)
    clock.time_us = 5_000
    second = loop.take()
    assert second is not None
    assert (second.number, second.arrived_us) == (1, 5_000)
    for query in second.queries:
        loop.answered(query.number)
    third = loop.take()
    assert third is not None
    assert [query.number for query in third.queries] == [4]
    assert loop.ended
    loop.answered(4)
    assert loop.take() is None


def test_a_query_is_answered_once_and_only_if_it_was_asked(dataset: Dataset) -> None:
    loop = ClosedLoop(dataset, [0, 1], window=2, now_us=HandClock().now_us)
    with pytest.raises(ContestantError, match="nobody waits for"):
        loop.answered(0)
    loop.take()
    loop.answered(0)
    with pytest.raises(ContestantError, match="nobody waits for"):
        loop.answered(0)
    with pytest.raises(ContestantError, match="draft after its final"):
        loop.arrived_us(0)


def test_looking_ahead_shows_the_windows_that_wait(dataset: Dataset) -> None:
    loop = ClosedLoop(dataset, [7, 3, 9, 1, 4], window=2, now_us=HandClock().now_us)
    loop.take()
    ahead = loop.ahead(4)
    assert [probes.tolist() for probes in ahead] == [
        dataset.probes[[9, 1]].tolist(),
        dataset.probes[[4]].tolist(),
    ]
    assert len(loop.ahead(1)) == 1


def test_in_an_open_loop_queries_arrive_when_they_are_due(dataset: Dataset) -> None:
    clock = HandClock()
    due_us = np.array([100, 200, 250, 10_000], dtype=np.int64)
    loop = OpenLoop(
        dataset, [5, 6, 7, 8], due_us=due_us, window=2, now_us=clock.now_us, sleep=clock.sleep
    )
    assert loop.take(timeout_us=50) is None
    assert clock.time_us == 1_050
    first = loop.take()
    assert first is not None
    assert (clock.time_us, first.arrived_us) == (1_100, 1_100)
    clock.time_us = 2_000  # while it was busy, two more came
    assert [probes.tolist() for probes in loop.ahead(3)] == [dataset.probes[[6, 7]].tolist()]
    second = loop.take(timeout_us=0)
    assert second is not None
    assert [query.arrived_us for query in second.queries] == [1_200, 1_250]
    assert loop.take(timeout_us=0) is None
    last = loop.take()
    assert last is not None
    assert clock.time_us == last.arrived_us == 11_000
    assert loop.ended
    assert loop.take() is None


def test_a_stopped_loop_gives_nothing_more(dataset: Dataset) -> None:
    clock = HandClock()
    due_us = np.array([0, 1, 2], dtype=np.int64)
    loop = OpenLoop(
        dataset, [0, 1, 2], due_us=due_us, window=1, now_us=clock.now_us, sleep=clock.sleep
    )
    assert loop.take() is not None
    loop.stop()
    assert loop.ended
    assert loop.take() is None
    assert loop.ahead(1) == ()
    assert loop.owed == 1


@given(st.integers(1, 200), st.floats(0.5, 5_000), st.integers(0, 9))
def test_poisson_arrivals_are_ascending_and_repeat_for_a_seed(
    count: int, rate: float, seed: int
) -> None:
    due_us = poisson_due_us(count, rate, np.random.default_rng(seed))
    assert due_us.shape == (count,)
    assert (np.diff(due_us) >= 0).all()
    assert np.array_equal(due_us, poisson_due_us(count, rate, np.random.default_rng(seed)))


def test_poisson_arrivals_come_at_their_rate() -> None:
    due_us = poisson_due_us(20_000, 250.0, np.random.default_rng(0))
    assert due_us[-1] / 20_000 == pytest.approx(4_000, rel=0.03)


def test_an_answer_from_the_future_or_with_too_many_ids_is_refused() -> None:
    answers = Answers(3, 2)
    with pytest.raises(ContestantError, match="answered at 9 and received at 5"):
        answers.add(Result(9, 0, 0, np.array([1]), True), 1, 5)
    with pytest.raises(ContestantError, match="more than top_k"):
        answers.add(Result(2, 0, 0, np.array([1, 2, 3]), True), 1, 5)
    answers.add(Result(2, 1, 0, np.array([8]), False), 1, 4)
    answers.add(Result(3, 1, 1, np.array([9]), True), 1, 5)
    assert (answers.drafts, answers.latencies_us, answers.first_us) == (1, [4], 4)
    assert answers.ids.tolist() == [[-1, -1], [9, -1], [-1, -1]]


def test_counters_are_told_by_phase() -> None:
    before = Counters(bytes_read=5, others={"groups": 2.0})
    now = Counters(bytes_read=9, cache_hits=3, others={"groups": 3.0, "late": 1.0})
    assert since(now, before) == Counters(
        bytes_read=4, cache_hits=3, others={"groups": 3.0, "late": 1.0}
    )
    assert since(Counters(), Counters()).bytes_read is None
