"""What is read during a run becomes results: first records count, citations are checked, metrics
are compared.
"""

from __future__ import annotations

import msgspec
import pytest

from bench.core.accounting import close_books
from bench.core.memory import MemoryPeaks, MemoryUse
from bench.core.spread import Spread
from bench.services.figures import CacheUse, Trip
from bench.services.results import final_retrievals, generated, has_valid_citations, retrieval_books
from bench.services.traffic import (
    Counters,
    Footprint,
    TrafficResult,
    agrees,
    retrieved_per_s,
    traffic_promises,
)
from producers.send_load import LoadSummary
from schemas.answer import Answer, Citation, Retrieved, Status, unanswered
from tests.bench.helpers import arrived
from tests.bench.test_figures import retrieval

MIB = 1024 * 1024


def answer(
    query_id: str = "q",
    status: Status = "ok",
    text: str = "In 1785 [2].",
    citations: tuple[Citation, ...] = (),
) -> Answer:
    return Answer(
        query_id=query_id,
        status=status,
        is_final=True,
        replayed=False,
        attempts=1,
        citations=citations,
        retrieved=(Retrieved(id="one", score=0.9), Retrieved(id="two", score=0.8)),
        answer=text,
        timings_ms={"ttft": 10.0, "total": 100.0},
        model="m",
    )


def test_the_first_final_retrieval_of_a_query_counts_and_others_are_left_out() -> None:
    draft = msgspec.structs.replace(retrieval(bytes_read=1), is_final=False)
    records = [
        arrived("a", draft, 1),
        arrived("a", retrieval(bytes_read=2), 2),
        arrived("a", retrieval(bytes_read=3), 3),
        arrived("stranger", retrieval(), 4),
    ]
    found = final_retrievals(records, {"a", "b"})
    assert {key: (one.bytes_read, at) for key, (one, at) in found.items()} == {"a": (2, 2)}


def test_answers_of_grouper_and_searcher_say_why_there_is_no_retrieval() -> None:
    expired = unanswered(
        query_id="b",
        status="expired",
        stage="searcher",
        error_type="expired",
        message="late",
        retryable=True,
    )
    broken = unanswered(
        query_id="a",
        status="failed",
        stage="generator",
        error_type="llm_refused",
        message="no",
        retryable=True,
    )
    books = retrieval_books({"a", "b"}, [arrived("a", retrieval())], [expired, broken])
    assert (books.answered, books.missing, books.other) == (1, 0, {"expired": 1})


@pytest.mark.parametrize(
    ("citation", "is_valid"),
    [
        (Citation(n=2, doc_id="two", start=8, end=11), True),
        (Citation(n=2, doc_id="two"), True),
        (Citation(n=1, doc_id="two"), False),
        (Citation(n=3, doc_id="three"), False),
        (Citation(n=1, doc_id="one", start=8, end=11), False),
    ],
)
def test_a_citation_is_of_the_passage_that_had_its_number_and_stands_where_it_says(
    citation: Citation, is_valid: bool
) -> None:
    assert has_valid_citations(answer(citations=(citation,)), ["one", "two"]) is is_valid


def test_no_citation_is_no_valid_citation_and_neither_is_one_of_what_was_not_retrieved() -> None:
    assert not has_valid_citations(answer(), ["one", "two"])
    assert not has_valid_citations(answer(citations=(Citation(n=2, doc_id="two"),)), ["one"])


def test_generated_counts_statuses_and_promises_one_answer_each() -> None:
    cited = (Citation(n=1, doc_id="one"),)
    good = [answer("a", citations=cited), answer("b", "partial"), answer("c", citations=cited)]
    made = generated({"a", "b", "c"}, good, dict.fromkeys("abc", ("one", "two")))
    assert made.books.holds
    assert made.by_status == {"ok": 2, "partial": 1}
    assert (made.valid_citations, made.citations) == (2, 2)
    assert made.valid_citations_share == pytest.approx(2 / 3)
    refused = unanswered(
        query_id="c",
        status="failed",
        stage="generator",
        error_type="llm_refused",
        message="no",
        retryable=True,
    )
    failed = generated({"a", "b", "c"}, [*good[:2], refused], {})
    assert not failed.books.holds
    assert (failed.by_status["failed"], failed.errors) == (1, ("no",))


def counters(**counts: int) -> Counters:
    return Counters(**{name: counts.get(name, 0) for name in Counters.__struct_fields__})


def test_records_and_metrics_agree_on_tiers_and_on_bytes_read_on_demand() -> None:
    use = CacheUse(gpu=0, ram=3, ssd=2, bytes_read=8_192)
    assert agrees(use, counters(ram=3, ssd=2, demand_bytes=8_192, prefetch_bytes=4_096))
    assert not agrees(use, counters(ram=3, ssd=2, demand_bytes=4_096))
    assert not agrees(use, counters(ram=2, ssd=3, demand_bytes=8_192))


def test_a_rate_counts_from_the_first_question_to_the_last_retrieval() -> None:
    trips = [
        Trip(intended_us=at_us, sent_us=at_us, arrived_us=back_us, retrieval=retrieval())
        for at_us, back_us in (
            (1_000_000, 1_500_000),
            (1_200_000, 3_000_000),
            (1_400_000, 2_000_000),
        )
    ]
    assert retrieved_per_s(trips) == 1.5
    assert retrieved_per_s([]) == 0.0


def test_counters_are_read_twice_and_subtracted() -> None:
    assert counters(ram=5, ssd=4).since(counters(ram=2, ssd=4)) == counters(ram=3)


def result(searcher_bytes: int, grouper_bytes: int) -> TrafficResult:
    one = Spread(count=1, mean=1, p50=1, p99=1, max=1)
    return TrafficResult(
        kind="text",
        load=LoadSummary(
            run_id="r",
            sent=1,
            acknowledged=1,
            errors=0,
            unacknowledged=0,
            duration_s=1,
            rate_per_s=1,
            behind_ms_max=0,
            first_error=None,
        ),
        retrieved_per_s=1,
        retrievals=close_books(["a"], ["a"], {}),
        stages_ms={"total": one},
        windows=None,
        cache=CacheUse(gpu=0, ram=0, ssd=0, bytes_read=0),
        cache_hit_share=0,
        counters=counters(),
        records_agree_with_metrics=True,
        demand_bytes_a_query=0,
        bytes_a_query=0,
        memory={
            "searcher": MemoryPeaks(
                anonymous_bytes_max=searcher_bytes, resident_bytes_max=0, samples=1
            ),
            "grouper": MemoryPeaks(
                anonymous_bytes_max=0, resident_bytes_max=grouper_bytes, samples=1
            ),
        },
    )


def test_memory_is_promised_against_budget_and_footprint() -> None:
    footprint = Footprint(
        at_rest=MemoryUse(anonymous_bytes=0, resident_bytes=0),
        in_use=MemoryPeaks(anonymous_bytes_max=101 * MIB, resident_bytes_max=0, samples=1),
        cluster_bytes=MIB,
        beside_budget_bytes=100 * MIB,
        questions=1,
    )
    assert all(traffic_promises([result(110 * MIB, 800 * MIB)], footprint, 10 * MIB).values())
    assert not traffic_promises([result(110 * MIB + 1, 0)], footprint, 10 * MIB)[
        "text: searcher within budget and footprint"
    ]
    assert not traffic_promises([result(0, 900 * MIB)], footprint, 10 * MIB)[
        "text: grouper under 900 MB"
    ]
    large = msgspec.structs.replace(footprint, beside_budget_bytes=151 * MIB)
    assert not traffic_promises([], large, 10 * MIB)["searcher's footprint at most 150 MB"]
