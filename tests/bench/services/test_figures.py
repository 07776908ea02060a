"""Figures of claims, traffic and overhead, on inputs small enough to add up by hand."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from msgspec.structs import replace

from bench.core.accounting import account
from bench.core.memory import MemoryUse
from bench.core.spread import spread
from bench.services.bare_hop import ends_of, records_of
from bench.services.claims import evidence_share
from bench.services.overhead import SideResult, promises
from bench.services.results import answer_accounting, final_retrievals, retrieval_accounting
from bench.services.traffic import (
    MIB,
    CacheUse,
    TrafficResult,
    cache_use,
    retrieved_per_s,
    stages_ms,
    traffic_promises,
)
from producers.send_load import SentQuestion
from schemas.answer import Answer, unanswered
from schemas.record import ClusterId
from schemas.retrieval import Probe, Retrieval
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


def test_evidence_counts_among_the_first_hits_only_and_a_claim_without_hits_is_missed() -> None:
    found = {"a": ["1", "2", "3"], "b": ["9", "4"], "other": ["5"]}
    pages = {"a": "37", "b": "4", "c": "6", "d": "8", "e": ""}
    evidence = {claim: frozenset(ids) for claim, ids in pages.items()}
    assert evidence_share(found, evidence, first=2) == 0.25
    assert evidence_share(found, evidence, first=3) == 0.5
    with pytest.raises(ValueError, match="no claim has evidence"):
        evidence_share(found, {"e": frozenset()})


def sent(query_id: str, intended_us: int, sent_us: int = 0) -> dict[str, SentQuestion]:
    return {query_id: SentQuestion(query_id, 0, intended_us, sent_us or intended_us)}


def test_a_total_counts_from_the_intended_time_and_unknown_stages_are_last() -> None:
    retrieval = a_retrieval(completed_us=8_000, timings_us={"rerank": 500, "load": 200})
    found = stages_ms(sent("a", 1_000, 1_300), {"a": (retrieval, 9_000)})
    assert [(stage, each.max) for stage, each in found.items()] == [
        ("send_delay", 0.3),
        ("load", 0.2),
        ("return", 1.0),
        ("total", 8.0),
        ("rerank", 0.5),
    ]


def test_a_rate_counts_from_the_first_question_to_the_last_retrieval() -> None:
    questions = sent("a", 1_000_000) | sent("b", 1_200_000) | sent("c", 1_400_000)
    back_us = {"a": 1_500_000, "b": 3_000_000, "c": 2_000_000}
    found = {key: (a_retrieval(), at_us) for key, at_us in back_us.items()}
    assert retrieved_per_s(questions, found) == 1.5
    assert retrieved_per_s(questions, {}) == 0.0


def probed(tiers: str, bytes_read: int) -> Retrieval:
    kinds = {"r": "ram", "s": "ssd"}
    probes = tuple(
        Probe(cluster=ClusterId(number), tier=kinds[tier])  # type: ignore[arg-type]
        for number, tier in enumerate(tiers)
    )
    return a_retrieval(probes=probes, bytes_read=bytes_read)


USE = CacheUse(ram=3, ssd=3, bytes_read=300)
TRAFFIC = TrafficResult(
    offered_per_s=1.0,
    retrieved_per_s=1.0,
    accounting=account("a", "a"),
    stages_ms={},
    hit_share=0.5,
    records=USE,
    metrics=USE,
    audited_ids=0,
    bytes_a_query=0.0,
    memory={
        "searcher": MemoryUse(
            resident_bytes=0, resident_bytes_max=0, anonymous_bytes_max=160 * MIB
        ),
        "grouper": MemoryUse(resident_bytes=0, resident_bytes_max=800 * MIB, anonymous_bytes_max=0),
    },
)


def test_cache_use_adds_up_tiers_and_bytes() -> None:
    assert cache_use([probed("rrs", 100), probed("rss", 200), probed("", 0)]) == USE


def broken(promises: dict[str, bool]) -> list[str]:
    return [promise for promise, is_kept in promises.items() if not is_kept]


MORE = replace(USE, ram=4)


@pytest.mark.parametrize(
    ("result", "budget_mib", "promise"),
    [
        (TRAFFIC, 10, None),
        (TRAFFIC, 9, "searcher within 150 MB beside its budget"),
        (replace(TRAFFIC, accounting=account("a", "")), 10, "each question has one retrieval"),
        (replace(TRAFFIC, metrics=MORE), 10, "records and metrics agree on cache and bytes"),
        (replace(TRAFFIC, metrics=MORE, audited_ids=1), 10, None),
        (
            replace(TRAFFIC, records=MORE, audited_ids=1),
            10,
            "records and metrics agree on cache and bytes",
        ),
    ],
)
def test_each_promise_of_traffic_breaks_by_itself(
    result: TrafficResult, budget_mib: int, promise: str | None
) -> None:
    found = broken(traffic_promises({"text": result}, budget_mib * MIB))
    assert found == ([] if promise is None else [f"text: {promise}"])


def side(*totals_ms: float, rate_per_s: float = 200.0, answers: int = 1) -> SideResult:
    return SideResult(
        accounting=account("a", "a" * answers),
        total_ms=spread(totals_ms),
        cpu_ms_a_question=1.0,
        cores=1.0,
        rates_per_s=(rate_per_s,),
    )


@pytest.mark.parametrize(
    ("carpool", "bare", "promise"),
    [
        (side(59), side(5), None),
        (side(61), side(5), "p50 at most 60, p99 150 ms"),
        (side(*[10] * 50, 500), side(5), "p50 at most 60, p99 150 ms"),
        (side(), side(5), "p50 at most 60, p99 150 ms"),
        (side(1, answers=2), side(5), "each question has one answer"),
        (side(1), side(1, answers=2), "bare hops copied each question once"),
        (side(1, rate_per_s=100), side(5), "questions were sent at the rate"),
        (side(1), side(1, rate_per_s=100), "questions were sent at the rate"),
    ],
)
def test_each_promise_of_overhead_breaks_by_itself(
    carpool: SideResult, bare: SideResult, promise: str | None
) -> None:
    found = broken(promises({"exactly-once-1": (carpool, bare)}, 200.0))
    assert len(found) == (promise is not None)
    assert promise is None or found[0].startswith(f"exactly-once-1: {promise}")


class PolledRecord:
    """A record or an error as confluent-kafka returns it."""

    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "a"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset


def test_a_hop_continues_after_the_last_record_and_ends_on_a_fatal_error() -> None:
    found: list[Any] = [PolledRecord(0, 4), PolledRecord(1, 7), PolledRecord(0, 5)]
    end: Any = PolledRecord(0, 6, KafkaError(KafkaError._PARTITION_EOF))
    fatal: Any = PolledRecord(0, 6, KafkaError(KafkaError._FENCED, "fenced", True))
    assert records_of([None, *found, end]) == found
    assert {(at.partition, at.offset) for at in ends_of(found)} == {(0, 6), (1, 8)}
    with pytest.raises(KafkaException):
        records_of([fatal])
