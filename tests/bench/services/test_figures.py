"""Figures of claims, traffic and overhead, on inputs small enough to add up by hand."""

from __future__ import annotations

import pytest

from bench.core.accounting import account, answer_accounting
from bench.core.spread import spread
from bench.services.claims import evidence_share, first_retrievals
from bench.services.overhead import NO_LLM, SideResult, promises
from schemas.answer import unanswered
from tests.bench.helpers import received
from tests.records import a_retrieval, an_answer, some_hits


def test_the_first_final_retrieval_of_a_query_counts() -> None:
    records = [
        received("a", a_retrieval(is_final=False)),
        received("a", a_retrieval(hits=some_hits(2))),
        received("a", a_retrieval(hits=some_hits(3))),
        received("another", a_retrieval()),
    ]
    assert first_retrievals(records, {"a", "b"}) == {"a": some_hits(2)}


def test_a_query_is_answered_by_one_answer_that_contains_an_answer() -> None:
    answers = [an_answer("a"), an_answer("b", "partial")]
    assert answer_accounting({"a", "b"}, answers).holds
    assert not answer_accounting({"a", "b", "c"}, answers).holds
    assert not answer_accounting({"a", "b"}, [*answers, an_answer("a")]).holds
    failed = unanswered(
        query_id="b",
        status="failed",
        stage="generator",
        error_type="x",
        message="no",
        retryable=True,
    )
    assert answer_accounting({"a", "b"}, [answers[0], failed]).missing == 1


def test_evidence_counts_among_the_first_hits_only_and_a_claim_without_hits_is_missed() -> None:
    found = {"a": ("1", "2", "3"), "b": ("9", "4"), "other": ("5",)}
    pages = {"a": "37", "b": "4", "c": "6", "d": "8", "e": ""}
    evidence = {claim: frozenset(ids) for claim, ids in pages.items()}
    assert evidence_share(found, evidence, first=2) == 0.25
    assert evidence_share(found, evidence, first=3) == 0.5
    with pytest.raises(ValueError, match="no claim has evidence"):
        evidence_share(found, {"e": frozenset()})


def broken(promises: dict[str, bool]) -> list[str]:
    return [promise for promise, is_kept in promises.items() if not is_kept]


ONE_ANSWER = "each question has one answer, or one copy by bare hops"


def side(*totals_ms: float, answers: int = 1) -> SideResult:
    return SideResult(
        accounting=account("a", "a" * answers),
        total_ms=spread(totals_ms),
        prompt_ids=0.0,
        cpu_ms_a_question=1.0,
        over_bare_hops=1.0,
        cpu_ms={},
        idle_ms=0.0,
        not_counted_ms={},
        cores=1.0,
    )


@pytest.mark.parametrize(
    ("carpool", "bare", "promise"),
    [
        (side(59), side(5), None),
        (side(61), side(5), "p50 at most 60, p99 150 ms"),
        (side(*[10] * 50, 500), side(5), "p50 at most 60, p99 150 ms"),
        (side(), side(5), "p50 at most 60, p99 150 ms"),
        (side(1, answers=2), side(5), ONE_ANSWER),
        (side(1), side(1, answers=2), ONE_ANSWER),
    ],
)
def test_each_promise_of_overhead_breaks_by_itself(
    carpool: SideResult, bare: SideResult, promise: str | None
) -> None:
    found = broken(promises({"exactly-once-1": {"200 a second": {"": bare, NO_LLM: carpool}}}))
    assert found == ([] if promise is None else [f"exactly-once-1: {promise}"])
