"""Which lines of a batch are open, against a dict that keeps all answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.batch.costs import Costs, Prices
from producers.batch.plan import STATUSES, BatchPlan
from schemas.answer import Status, Usage
from schemas.batch import Round

LINES = 8
IN_FLIGHT = 3
lines = st.integers(1, LINES)
statuses = st.sampled_from(STATUSES)
EVENTS = st.one_of(
    st.tuples(st.just("send")),
    st.tuples(st.just("fail"), lines),
    st.tuples(st.just("answer"), lines, statuses, st.integers(0, 9)),
    st.tuples(st.just("retry"), st.sets(statuses, min_size=1)),
)


class Model:
    """What is known of each line: the first answer of its newest round."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[int, Status]] = {}
        self.rounds: list[set[Status]] = []

    def answered(self, line: int, status: Status, round: int) -> bool:
        if line in self.found and round <= self.found[line][0]:
            return False
        self.found[line] = round, status
        return True

    def is_open(self, line: int) -> bool:
        if line not in self.found:
            return True
        round, status = self.found[line]
        return any(status in each for each in self.rounds[round:])


def follow(plan: BatchPlan, model: Model, event: tuple[Any, ...]) -> None:
    match event:
        case ("send",):
            if (line := plan.find_next()) is not None:
                assert model.is_open(line) and line not in plan.in_flight
                plan.sent(line)
        case ("fail", line) if line in plan.in_flight:
            plan.not_sent(line)
        case ("answer", line, status, round):
            round = min(round, len(model.rounds))
            counts = model.answered(line, status, round)
            assert plan.answered(line, status, round) == (True, counts)
        case ("retry", again):
            model.rounds.append(again)
            plan.ask_again(Round(statuses=tuple(again), ends=()))


@given(st.lists(EVENTS, max_size=60))
def test_lines_are_open_until_the_last_round_that_they_belong_to_has_their_answer(
    events: list[tuple[Any, ...]],
) -> None:
    plan, model = BatchPlan(LINES, IN_FLIGHT), Model()
    for event in events:
        follow(plan, model, event)
        plan.check_integrity()
        assert plan.open == sum(map(model.is_open, range(1, LINES + 1)))
        found = [status for _, status in model.found.values()]
        assert +plan.counts == {status: found.count(status) for status in set(found)}
    for line in tuple(plan.in_flight):  # the answers of what is in flight come, before a retry
        plan.answered(line, "failed", 0)
        plan.answered(line, "ok", len(plan.rounds))
    while (line := plan.find_next()) is not None:
        plan.sent(line)
        plan.answered(line, "ok", len(plan.rounds))
    assert plan.open == 0, "no line is forgotten"


def test_a_line_that_is_left_out_is_never_sent() -> None:
    plan = BatchPlan(3, 9, [2])
    plan.ask_again(Round(statuses=("ok",), ends=()))
    sent = []
    while (line := plan.find_next()) is not None:
        sent.append(line)
        plan.sent(line)
    assert (sent, plan.open, plan.answered(2, "ok", 0)) == ([1, 3], 2, (False, False))


def test_the_order_of_the_log_says_to_which_round_an_answer_belongs() -> None:
    plan = BatchPlan(1, 1)
    plan.ask_again(Round(statuses=("failed",), ends=(10, 5)))
    plan.ask_again(Round(statuses=("failed",), ends=(20,)))
    assert [plan.round_of(0, offset) for offset in (9, 10, 19, 20)] == [0, 1, 1, 2]
    assert [plan.round_of(1, offset) for offset in (4, 5)] == [1, 2], "a partition that was added"


def test_an_answer_that_the_output_has_is_no_news_in_the_log_once() -> None:
    plan = BatchPlan(2, 1)
    plan.was_written(1, "ok", 0)
    assert plan.answered(1, "ok", 0) == (False, False)
    assert plan.answered(1, "ok", 0) == (True, False), "a second one was paid"
    assert plan.answered(3, "ok", 0) == (False, False), "no line of this batch"
    for round, status in ((0, "failed"), (1, "ok")):
        plan.was_written(2, status, round)
    plan.ask_again(Round(statuses=("failed",), ends=()))
    found = [plan.answered(2, "failed", 0), plan.answered(2, "ok", 1), plan.answered(2, "ok", 1)]
    assert found == [(False, False), (False, False), (True, False)]


def test_an_answer_of_before_a_retry_lets_the_line_be_sent_again() -> None:
    plan = BatchPlan(1, 1)
    plan.sent(1)
    plan.ask_again(Round(statuses=("failed",), ends=(9,)))
    assert plan.answered(1, "failed", 0) == (True, True)
    assert plan.find_next() == 1


@given(
    st.floats(0, 50),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 90)), min_size=1, max_size=40),
)
def test_reservations_keep_the_cost_below_the_limit(
    cost_max: float, used: list[tuple[int, int]]
) -> None:
    prices = Prices(input=1e4, output=3e4, cost_max=cost_max, prompt_tokens=900)
    costs, in_flight = Costs(prices), list[int]()
    most = prices.most(90, is_workflow=False)
    for line, (input_tokens, output_tokens) in enumerate(used):
        if costs.reserve(line, most):
            in_flight.append(line)
        if in_flight and line % 2:
            costs.free(in_flight.pop(0))
            costs.add(Usage(input_tokens=input_tokens, output_tokens=output_tokens))
        assert costs.cost + most * len(in_flight) <= cost_max + 1e-9, "all of it may be needed"


def test_the_cost_of_more_answers_has_the_interval_of_their_mean() -> None:
    costs = Costs(Prices(input=1e6))
    for tokens in (1, 2, 3):
        costs.add(Usage(input_tokens=tokens))
    costs.add(Usage(reused_tokens=50))
    cost, half = costs.of_more(30)
    assert cost == pytest.approx(60)
    assert half == pytest.approx(1.96 * 30 * (2 / 3 / 3) ** 0.5)
