"""From recorded records to retrievals, groups and answers, and the accounting of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec
import numpy as np

from bench.core.accounting import Accounting, account
from bench.core.spread import Spread, spread
from bench.core.topic_recorder import ReceivedRecord
from bench.data.evaluation import Float32
from schemas.answer import Answer
from schemas.codec import decode
from schemas.group import Group
from schemas.retrieval import Retrieval

ANSWERED = ("ok", "partial")
"""Statuses of answers that contain an answer."""


def final_retrievals(
    records: Iterable[ReceivedRecord], ids: Set[str]
) -> dict[str, tuple[Retrieval, int]]:
    """Returns the first final retrieval of each of `ids`, and when it was read (epoch us)."""
    found: dict[str, tuple[Retrieval, int]] = {}
    for record in records:
        if record.key in ids and record.key not in found:
            retrieval = decode(Retrieval, record.value, record.headers)
            if retrieval.is_final:
                found[record.key] = (retrieval, record.received_us)
    return found


def groups_of(records: Iterable[ReceivedRecord], ids: Set[str]) -> list[Group]:
    """Returns the groups that contain a query of `ids`."""
    groups = (decode(Group, record.value, record.headers) for record in records)
    return [
        group for group in groups if any(grouped.query.query_id in ids for grouped in group.queries)
    ]


def query_vectors(groups: Iterable[Group]) -> dict[str, Float32]:
    """Returns the vector that the grouper used, by query id: (dim,) float32 each."""
    return {
        grouped.query.query_id: np.frombuffer(grouped.vector, dtype="<f4")
        for group in groups
        for grouped in group.queries
    }


def answers_of(records: Iterable[ReceivedRecord], ids: Set[str]) -> list[Answer]:
    """Returns all answers to `ids`, in the order read."""
    return [decode(Answer, record.value, record.headers) for record in records if record.key in ids]


def retrieval_accounting(
    ids: Set[str], retrievals: Iterable[ReceivedRecord], answers: Iterable[Answer]
) -> Accounting:
    """Returns whether each query has one retrieval.

    Answers of the grouper and the searcher say why a query has none.
    """
    ended = {
        answer.query_id: answer.status
        for answer in answers
        if answer.error is not None and answer.error.stage in ("grouper", "searcher")
    }
    return account(ids, (record.key for record in retrievals), ended)


def answer_accounting(ids: Set[str], answers: Sequence[Answer]) -> Accounting:
    """Returns whether each query has one answer with a status of `ANSWERED`."""
    ended = {each.query_id: each.status for each in answers if each.status not in ANSWERED}
    return account(ids, (each.query_id for each in answers if each.status in ANSWERED), ended)


class GeneratedAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """What the generator made of its claims.

    `valid_citations`: answers that cite, and cite only passages of their retrieval under the
    numbers that these had. `models`: names that the server gives itself.
    """

    accounting: Accounting
    by_status: dict[str, int]
    valid_citations: int
    valid_citations_share: float
    citations: int
    models: tuple[str, ...]
    time_to_first_token_ms: Spread | None
    total_ms: Spread | None
    errors: tuple[str, ...]


def has_valid_citations(answer: Answer, hits: Sequence[str]) -> bool:
    """Whether an answer cites, and each citation names a retrieved passage by its number.

    `hits`: ids of the retrieval, best first. A citation with a position must be at that position.
    """
    for citation in answer.citations:
        if (
            not 1 <= citation.n <= len(answer.retrieved)
            or answer.retrieved[citation.n - 1].id != citation.doc_id
            or citation.doc_id not in hits
        ):
            return False
        cited = (answer.answer or "")[citation.start : citation.end]
        if citation.start is not None and str(citation.n) not in cited:
            return False
    return bool(answer.citations)


def generated_answers(
    ids: Set[str], answers: Sequence[Answer], hits: Mapping[str, Sequence[str]]
) -> GeneratedAnswers:
    """Returns the result for the queries `ids`. `hits`: ids of each retrieval, best first."""
    first = {answer.query_id: answer for answer in reversed(answers)}.values()
    good = [answer for answer in first if answer.status in ANSWERED]
    valid = sum(has_valid_citations(answer, hits.get(answer.query_id, ())) for answer in good)

    def times_ms(name: str) -> Spread | None:
        return spread(answer.timings_ms[name] for answer in good if name in answer.timings_ms)

    return GeneratedAnswers(
        accounting=answer_accounting(ids, answers),
        by_status=dict(sorted(Counter(answer.status for answer in first).items())),
        valid_citations=valid,
        valid_citations_share=valid / len(good) if good else 0.0,
        citations=sum(len(answer.citations) for answer in good),
        models=tuple(sorted({answer.model for answer in good if answer.model})),
        time_to_first_token_ms=times_ms("ttft"),
        total_ms=times_ms("total"),
        errors=tuple(dict.fromkeys(answer.error.message for answer in first if answer.error))[:5],
    )
