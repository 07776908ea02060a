"""The load generator: intended times, counts, and brokers that refuse."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from producers.arrival_times import bounded, even
from producers.build_query import QueryRecord
from producers.errors import PublishError
from producers.publish_queries import Placed
from producers.read_questions import Question
from producers.send_load import LoadPlan, LoadProgress, LoadSummary, SentQuestion, run_load
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
    count: int,
    broker: Broker,
    *,
    questions: Sequence[Question] = QUESTIONS,
    plan: LoadPlan | None = None,
    rate: float = 10,
    cost_us: int = 0,
    **callbacks: Any,
) -> LoadSummary:
    """Sends `count` questions at an even rate, with a clock moved by hand."""
    clock = HandClock(cost_us)
    times_us = bounded(even(rate), duration_s=None, limit=count)
    plan = plan or LoadPlan()
    return run_load(
        broker, questions, times_us, plan=plan, clock=clock, sleep=clock.sleep, **callbacks
    )


def test_each_question_is_sent_at_its_intended_time_and_the_file_begins_again() -> None:
    broker, sent = Broker(), list[SentQuestion]()
    summary = load(5, broker, plan=LoadPlan(run_id="r"), on_sent=sent.append)
    assert [each.intended_us - START_US for each in sent] == [0, 100_000, 200_000, 300_000, 400_000]
    assert [each.sent_us for each in sent] == [each.intended_us for each in sent]
    assert [each.row for each in sent] == [0, 1, 2, 0, 1]
    assert [query.query_id for query in broker.queries()] == ["r-0", "r-1", "r-2", "r-3", "r-4"]
    assert (summary.sent, summary.acknowledged, summary.errors) == (5, 5, 0)
    assert (summary.unacknowledged, summary.behind_ms_max) == (0, 0)


def test_a_machine_that_is_too_slow_sends_late_and_says_so_but_sends_all() -> None:
    # Each look at the clock costs 60 ms and each question looks at least twice: 100 ms a question
    # cannot be kept.
    sent = list[SentQuestion]()
    summary = load(10, Broker(), cost_us=60_000, on_sent=sent.append)
    assert summary.sent == 10
    gaps = {later.intended_us - earlier.intended_us for earlier, later in itertools.pairwise(sent)}
    assert gaps == {100_000}  # what is intended does not shift with what happens
    assert summary.behind_ms_max >= 10 * (2 * 60 - 100)


def test_refused_and_lost_questions_are_counted_and_delay_nothing() -> None:
    summary = load(5, Broker(full=1, lost=3))
    assert (summary.sent, summary.acknowledged, summary.errors) == (4, 3, 2)
    assert summary.first_error == "the queue is full"


def test_a_stop_ends_the_load_before_the_next_question() -> None:
    sent = list[SentQuestion]()
    summary = load(100, Broker(), on_sent=sent.append, is_stopped=lambda: len(sent) == 2)
    assert summary.sent == 2


def test_deadlines_count_from_the_intended_time_and_ids_of_the_file_may_be_kept() -> None:
    broker = Broker()
    load(2, broker, plan=LoadPlan(deadline_s=2.0, keep_ids=True, top_k=4, nprobe=2))
    first, second = broker.queries()
    assert (first.query_id, second.query_id) == ("q0", "q1")
    assert (first.deadline, second.deadline) == (START_US // 1000 + 2_000, START_US // 1000 + 2_100)
    assert (first.top_k, first.nprobe) == (4, 2)


def test_a_question_that_no_service_would_take_is_an_error_of_the_load() -> None:
    summary = load(2, Broker(), questions=(Question(text=" "),))
    assert (summary.sent, summary.errors) == (0, 2)
    assert "blank" in (summary.first_error or "")


def test_progress_is_reported_while_waiting_and_counts_never_fall() -> None:
    reports = list[LoadProgress]()
    load(4, Broker(), rate=1, on_progress=reports.append)
    assert len(reports) > 4
    assert [each.sent for each in reports] == sorted(each.sent for each in reports)
    assert reports[-1].sent == reports[-1].acknowledged == 4
