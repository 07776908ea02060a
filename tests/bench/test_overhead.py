"""What the way through the services costs: times seen from outside, counts of one load only, promises that can break."""

from __future__ import annotations

import pytest

from bench.accounting import close_books
from bench.kafka_runs import by_label, made_up_questions
from bench.listening import Arrived
from bench.overhead.outcome import CONTESTANTS, Contestant, Journey, Round, answer_books, cost, journeys, promises
from producers.load import LoadSummary, Sent
from schemas.answer import Answer
from schemas.group import Group, GroupedQuery
from schemas.query import Query
from schemas.record import ClusterId, Source
from tests.bench.helpers import arrived

ONE = Contestant(name="one", delivery="exactly_once", brokers=1, p50_ms_max=60, p99_ms_max=150)


def answer(query_id: str, at_us: int, status: str = "ok") -> Arrived:
    record = Answer(
        query_id=query_id,
        status=status,  # type: ignore[arg-type]
        is_final=True,
        replayed=False,
        attempts=1,
        citations=(),
        retrieved=(),
        timings_ms={"search": 2.0},
    )
    return arrived(query_id, record, at_us)


def group(at_us: int, *query_ids: str) -> Arrived:
    queries = tuple(
        GroupedQuery(
            query=Query(query_id=query_id, text="x"),
            source=Source(topic="rag.queries.v1", partition=0, offset=0),
            arrival_us=0,
            vector=b"0000",
            clusters=(ClusterId(1),),
        )
        for query_id in query_ids
    )
    record = Group(
        index_version="i",
        centroids_fingerprint="c",
        embedding_model="m",
        grouper="g",
        window_id=1,
        lane=0,
        lane_count=1,
        sequence=0,
        groups_in_window_for_lane=1,
        queries=queries,
        clusters=(ClusterId(1),),
    )
    return arrived("", record, at_us)


def sent(query_id: str, intended_us: int, sent_us: int) -> Sent:
    return Sent(query_id=query_id, row=0, intended_us=intended_us, sent_us=sent_us)


def load(rate_per_s: float = 200.0) -> LoadSummary:
    return LoadSummary(
        run_id="r",
        sent=1,
        acknowledged=1,
        errors=0,
        unacknowledged=0,
        duration_s=1.0,
        rate_per_s=rate_per_s,
        behind_ms_max=0.0,
        first_error=None,
    )


def round_of(*totals_ms: float, rate_per_s: float = 200.0, answers: int = 1) -> Round:
    return Round(
        seconds=2.0,
        load=load(rate_per_s),
        books=close_books(["a"], ["a"] * answers, {}),
        journeys=tuple(
            Journey(
                intended_us=0,
                sent_us=0,
                group_us=0,
                retrieval_us=0,
                answer_us=int(total * 1_000),
                services_ms={"search": 1.0},
            )
            for total in totals_ms
        ),
        commits={"grouper ok": 10.0},
        cpu_s={"grouper": 0.5},
    )


def test_a_journey_counts_from_the_intended_time_and_its_stages_add_up() -> None:
    records = {
        "group": [group(30_000, "a", "other")],
        "retrieval": [Arrived(key="a", value=b"", headers=(), arrived_us=45_000)],
        "answer": [answer("a", 50_000), answer("a", 99_000), answer("other", 1)],
    }
    (journey,) = journeys({"a": sent("a", 10_000, 12_000)}, records)
    stages = journey.stages_ms()
    assert stages == {"send": 2.0, "grouper": 18.0, "searcher": 15.0, "generator": 5.0, "total": 40.0}
    assert sum(stages.values()) == 2 * stages["total"]
    assert journey.services_ms == {"search": 2.0}


def test_a_question_that_came_back_only_in_part_has_no_journey_and_breaks_the_books() -> None:
    records = {"group": [group(30_000, "a")], "retrieval": [], "answer": [answer("a", 50_000)]}
    assert journeys({"a": sent("a", 0, 0)}, records) == ()
    assert not answer_books({"a", "b"}, records["answer"]).holds
    assert not answer_books({"a"}, [answer("a", 1, "failed")]).holds
    assert answer_books({"a"}, records["answer"]).holds


def test_rounds_are_pooled_and_counts_are_by_second() -> None:
    found = cost(ONE, [round_of(10, 20, 30), round_of(40)])
    assert found.total is not None
    assert (found.total.count, found.total.p50, found.total.max) == (4, 25.0, 40.0)
    assert found.commits_per_s == {"grouper ok": 5.0}
    assert found.cpu_s == {"grouper": 1.0}
    assert found.cpu_ms_a_question == 250.0


@pytest.mark.parametrize(
    ("rounds", "broken"),
    [
        ([round_of(59, 59, 59)], set()),
        ([round_of(61, 61, 61)], {"one: p50 at most 60 ms"}),
        ([round_of(*[10] * 50, 500)], {"one: p99 at most 150 ms"}),
        ([round_of(1, answers=2)], {"one: each question has one answer"}),
        ([round_of(1, rate_per_s=100.0)], {"one: questions were sent at the rate that was asked for"}),
    ],
)
def test_each_promise_can_break(rounds: list[Round], broken: set[str]) -> None:
    found = promises([cost(ONE, rounds)], 200.0)
    assert {promise for promise, held in found.items() if not held} == broken


def test_without_any_answer_no_bound_is_kept() -> None:
    found = promises([cost(ONE, [round_of()])], 200.0)
    assert not found["one: p50 at most 60 ms"]


def test_the_contestants_are_both_deliveries_and_both_clusters_each_with_its_bound() -> None:
    assert [(each.delivery, each.brokers, each.p50_ms_max, each.p99_ms_max) for each in CONTESTANTS] == [
        ("exactly_once", 1, 60, 150),
        ("exactly_once", 3, 120, None),
        ("at_least_once", 1, 25, None),
    ]


def test_counters_are_added_up_by_one_label() -> None:
    samples = {
        'carpool_commits_total{outcome="ok"}': 3.0,
        'carpool_commits_total{outcome="aborted"}': 1.0,
        'carpool_commits_created{outcome="ok"}': 9.0,
        "carpool_units_in_flight": 2.0,
    }
    assert by_label(samples, "carpool_commits_total", "outcome") == {"ok": 3.0, "aborted": 1.0}


def test_questions_have_a_text_and_its_vector_and_repeat_after_a_while() -> None:
    questions = made_up_questions(600)
    assert all(question.text for question in questions)
    assert {len(question.vector or b"") for question in questions} == {384 * 4}
    assert questions[0] == questions[500]
    assert questions[0] != questions[1]
