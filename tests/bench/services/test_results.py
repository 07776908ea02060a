"""Recorded records become results: first records count, and citations are checked."""

from __future__ import annotations

import pytest

from bench.services.results import (
    final_retrievals,
    generated_answers,
    has_valid_citations,
    retrieval_accounting,
)
from schemas.answer import Answer, Citation, Retrieved, unanswered
from tests.bench.helpers import received
from tests.records import a_retrieval, an_answer


def cited(query_id: str = "q", status: str = "ok", *citations: Citation) -> Answer:
    return an_answer(
        query_id,
        status,
        citations=citations,
        retrieved=(Retrieved(id="one", score=0.9), Retrieved(id="two", score=0.8)),
        answer="In 1785 [2].",
        timings_ms={"ttft": 10.0, "total": 100.0},
        model="m",
    )


def refused(query_id: str, stage: str, status: str) -> Answer:
    return unanswered(
        query_id=query_id,
        status=status,  # type: ignore[arg-type]
        stage=stage,  # type: ignore[arg-type]
        error_type="x",
        message="no",
        retryable=True,
    )


def test_the_first_final_retrieval_of_a_query_counts() -> None:
    records = [
        received("a", a_retrieval(bytes_read=1, is_final=False), 1),
        received("a", a_retrieval(bytes_read=2), 2),
        received("a", a_retrieval(bytes_read=3), 3),
        received("another", a_retrieval(), 4),
    ]
    found = final_retrievals(records, {"a", "b"})
    assert {key: (one.bytes_read, at) for key, (one, at) in found.items()} == {"a": (2, 2)}


def test_answers_of_grouper_and_searcher_say_why_there_is_no_retrieval() -> None:
    answers = [refused("b", "searcher", "expired"), refused("a", "generator", "failed")]
    found = retrieval_accounting({"a", "b"}, [received("a", a_retrieval())], answers)
    assert (found.answered, found.missing, found.other) == (1, 0, {"expired": 1})


@pytest.mark.parametrize(
    ("citations", "hits", "is_valid"),
    [
        ((Citation(n=2, doc_id="two", start=8, end=11),), "one two", True),
        ((Citation(n=2, doc_id="two"),), "one two", True),
        ((Citation(n=1, doc_id="two"),), "one two", False),
        ((Citation(n=3, doc_id="three"),), "one two", False),
        ((Citation(n=1, doc_id="one", start=8, end=11),), "one two", False),
        ((), "one two", False),
        ((Citation(n=2, doc_id="two"),), "one", False),
    ],
)
def test_a_valid_citation_names_a_retrieved_passage_by_its_number_at_its_position(
    citations: tuple[Citation, ...], hits: str, is_valid: bool
) -> None:
    assert has_valid_citations(cited("q", "ok", *citations), hits.split()) is is_valid


def test_generated_answers_are_counted_by_status_and_each_claim_has_one() -> None:
    good = Citation(n=1, doc_id="one")
    answers = [cited("a", "ok", good), cited("b", "partial"), cited("c", "ok", good)]
    made = generated_answers({"a", "b", "c"}, answers, dict.fromkeys("abc", ("one", "two")))
    assert made.accounting.holds
    assert made.by_status == {"ok": 2, "partial": 1}
    assert (made.valid_citations, made.citations) == (2, 2)
    assert made.valid_citations_share == pytest.approx(2 / 3)
    answers = [*answers[:2], refused("c", "generator", "failed")]
    failed = generated_answers({"a", "b", "c"}, answers, {})
    assert not failed.accounting.holds
    assert (failed.by_status["failed"], failed.errors) == (1, ("no",))
