"""What the way through the services costs: times seen from outside, counts of one load only,
promises that can break.
"""

from __future__ import annotations

import pytest

from bench.core.accounting import close_books
from bench.core.made_up import by_label, made_up_questions
from bench.core.topic_recorder import Arrived
from bench.services.overhead.contestants import CONTESTANTS, Contestant, chosen
from bench.services.overhead.disturbance import MachineLoad
from bench.services.overhead.outcome import (
    Journey,
    Round,
    answer_books,
    bare_journeys,
    copy_books,
    cost,
    journeys,
    measured,
    promises,
)
from carpool.errors import ConfigError
from producers.send_load import LoadSummary, SentQuestion
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


def sent(query_id: str, intended_us: int, sent_us: int) -> SentQuestion:
    return SentQuestion(query_id=query_id, row=0, intended_us=intended_us, sent_us=sent_us)


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
                read_us=(0, 0, int(total * 1_000)),
                services_ms={"search": 1.0},
            )
            for total in totals_ms
        ),
        commits={"grouper ok": 10.0},
        cpu_s={"grouper": 0.5},
        standby_cpu_s=0.1,
        machine=MachineLoad(stolen_share=0.01, cpu_wait_us=None),
    )


BARE = [round_of(5, 10, 15)]


def test_a_journey_counts_from_the_intended_time_and_its_stages_add_up() -> None:
    records = {
        "group": [group(30_000, "a", "other")],
        "retrieval": [Arrived(key="a", value=b"", headers=(), arrived_us=45_000)],
        "answer": [answer("a", 50_000), answer("a", 99_000), answer("other", 1)],
    }
    (journey,) = journeys({"a": sent("a", 10_000, 12_000)}, records)
    stages = journey.stages_ms()
    assert stages == {
        "send": 2.0,
        "grouper": 18.0,
        "searcher": 15.0,
        "generator": 5.0,
        "total": 40.0,
    }
    assert sum(stages.values()) == 2 * stages["total"]
    assert journey.services_ms == {"search": 2.0}


def test_a_question_that_came_back_only_in_part_has_no_journey_and_breaks_the_books() -> None:
    records = {"group": [group(30_000, "a")], "retrieval": [], "answer": [answer("a", 50_000)]}
    assert journeys({"a": sent("a", 0, 0)}, records) == ()
    assert not answer_books({"a", "b"}, records["answer"]).holds
    assert not answer_books({"a"}, [answer("a", 1, "failed")]).holds
    assert answer_books({"a"}, records["answer"]).holds


def test_rounds_are_pooled_and_counts_are_by_second() -> None:
    found = measured([round_of(10, 20, 30), round_of(40)])
    assert found.total is not None
    assert (found.total.count, found.total.p50, found.total.max) == (4, 25.0, 40.0)
    assert found.commits_per_s == {"grouper ok": 5.0}
    assert found.cpu_s == {"grouper": 1.0}
    assert found.cpu_ms_a_question == 250.0
    assert found.standby_cores == pytest.approx(0.05)
    assert len(found.machine) == 2


def test_a_contestant_is_compared_with_the_bare_hops_beside_it() -> None:
    found = cost(ONE, [round_of(10, 20, 30)], BARE).ratio
    assert found is not None
    assert (found.p50, found.p99, found.cpu) == pytest.approx((2.0, 2.0, 1.0))


def test_what_did_not_come_back_is_not_compared() -> None:
    assert cost(ONE, [round_of()], BARE).ratio is None
    assert cost(ONE, [round_of(1)], [round_of()]).ratio is None


def test_a_journey_over_bare_hops_needs_a_record_behind_each() -> None:
    def copies(at_us: int, *keys: str) -> list[Arrived]:
        return [Arrived(key=key, value=b"", headers=(), arrived_us=at_us) for key in keys]

    hops = [
        copies(20_000, "a", "b", "other"),
        copies(30_000, "a"),
        [*copies(50_000, "a", "b"), *copies(70_000, "a")],
    ]
    (journey,) = bare_journeys({"a": sent("a", 10_000, 12_000), "b": sent("b", 0, 0)}, hops)
    assert list(journey.stages_ms().values()) == [2.0, 8.0, 10.0, 20.0, 40.0]


def test_a_copy_that_comes_twice_or_never_breaks_the_books_of_bare_hops() -> None:
    copy = Arrived(key="a", value=b"", headers=(), arrived_us=1)
    assert copy_books({"a"}, [copy]).holds
    assert not copy_books({"a"}, [copy, copy]).holds
    assert not copy_books({"a", "b"}, [copy]).holds


def test_contestants_are_chosen_by_their_short_names_in_their_usual_order() -> None:
    assert [each.short_name for each in chosen([])] == [
        "exactly-once-1",
        "exactly-once-3",
        "at-least-once-1",
    ]
    assert [each.brokers for each in chosen(["exactly-once-3", "exactly-once-1"])] == [1, 3]
    with pytest.raises(ConfigError, match="exactly-once-1, exactly-once-3, at-least-once-1"):
        chosen(["exactly-once-2"])


@pytest.mark.parametrize(
    ("rounds", "broken"),
    [
        ([round_of(59, 59, 59)], set()),
        ([round_of(61, 61, 61)], {"one: p50 at most 60 ms"}),
        ([round_of(*[10] * 50, 500)], {"one: p99 at most 150 ms"}),
        ([round_of(1, answers=2)], {"one: each question has one answer"}),
        (
            [round_of(1, rate_per_s=100.0)],
            {"one: questions were sent at the rate that was asked for"},
        ),
    ],
)
def test_each_promise_can_break(rounds: list[Round], broken: set[str]) -> None:
    found = promises([cost(ONE, rounds, BARE)], 200.0)
    assert {promise for promise, held in found.items() if not held} == broken


def test_bare_hops_that_lose_or_repeat_a_question_or_get_fewer_are_no_baseline() -> None:
    found = promises(
        [cost(ONE, [round_of(1)], [round_of(1, answers=2), round_of(1, rate_per_s=100.0)])], 200.0
    )
    assert {promise for promise, held in found.items() if not held} == {
        "one: bare hops copied each question once",
        "one: questions were sent at the rate that was asked for",
    }


def test_without_any_answer_no_bound_is_kept() -> None:
    found = promises([cost(ONE, [round_of()], BARE)], 200.0)
    assert not found["one: p50 at most 60 ms"]


def test_the_contestants_are_both_deliveries_and_both_clusters_each_with_its_bound() -> None:
    assert [
        (each.delivery, each.brokers, each.p50_ms_max, each.p99_ms_max) for each in CONTESTANTS
    ] == [
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
