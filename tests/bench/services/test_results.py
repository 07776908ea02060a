"""Recorded records become results: first records count, and answers say what ended a query."""

from __future__ import annotations

from bench.services.results import answer_accounting, final_retrievals, retrieval_accounting
from schemas.answer import Answer, unanswered
from tests.bench.helpers import received
from tests.records import a_retrieval, an_answer


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


def test_a_query_is_answered_by_one_answer_that_contains_an_answer() -> None:
    answers = [an_answer("a"), an_answer("b", "partial")]
    assert answer_accounting({"a", "b"}, answers).holds
    assert not answer_accounting({"a", "b", "c"}, answers).holds
    assert not answer_accounting({"a", "b"}, [*answers, an_answer("a")]).holds
    failed = refused("b", "generator", "failed")
    assert answer_accounting({"a", "b"}, [answers[0], failed]).other == {"failed": 1}
