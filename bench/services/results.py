"""From what was read during a run to typed results: retrievals, groups, answers, and the books over
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec
import numpy as np

from bench.core.accounting import Books, close_books
from bench.core.spread import Spread, spread
from bench.core.topic_recorder import Arrived
from bench.data.evaluation import Float32
from schemas.answer import Answer
from schemas.codec import decode
from schemas.group import Group
from schemas.retrieval import Retrieval

GENERATED = ("ok", "partial")
"""Statuses of answers that hold one."""


def final_retrievals(records: Iterable[Arrived], ids: Set[str]) -> dict[str, tuple[Retrieval, int]]:
    """Returns each query's first final retrieval and when it was read (epoch microseconds). Others
    than `ids` are left out.
    """
    found: dict[str, tuple[Retrieval, int]] = {}
    for record in records:
        if record.key in ids and record.key not in found:
            retrieval = decode(Retrieval, record.value, record.headers)
            if retrieval.is_final:
                found[record.key] = (retrieval, record.arrived_us)
    return found


def groups_of(records: Iterable[Arrived], ids: Set[str]) -> list[Group]:
    """Returns the groups that hold a query of `ids`."""
    groups = (decode(Group, record.value, record.headers) for record in records)
    return [
        group for group in groups if any(grouped.query.query_id in ids for grouped in group.queries)
    ]


def query_vectors(groups: Iterable[Group]) -> dict[str, Float32]:
    """Returns the vector that the grouper searched with, by query id: (dim,) float32 each."""
    return {
        grouped.query.query_id: np.frombuffer(grouped.vector, dtype="<f4")
        for group in groups
        for grouped in group.queries
    }


def answers_of(records: Iterable[Arrived], ids: Set[str]) -> list[Answer]:
    """Returns the answers to `ids`, all of them, in the order read."""
    return [decode(Answer, record.value, record.headers) for record in records if record.key in ids]


def retrieval_books(
    ids: Set[str], retrievals: Iterable[Arrived], answers: Iterable[Answer]
) -> Books:
    """Returns whether each query got one retrieval. Answers of grouper and searcher say why one got
    none.
    """
    ended = {
        answer.query_id: answer.status
        for answer in answers
        if answer.error is not None and answer.error.stage in ("grouper", "searcher")
    }
    return close_books(ids, (record.key for record in retrievals), ended)


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """What the generator made of its share of the queries. `books`: each has one terminal answer
    with status ok or partial.

    `valid_citations_share`: of those, the share that cites, and cites only passages that its
    retrieval holds, under the numbers that they were given. Citations are counted as the answers
    carry them; `model` is what the server calls itself.
    """

    books: Books
    by_status: dict[str, int]
    valid_citations: int
    valid_citations_share: float
    citations: int
    models: tuple[str, ...]
    output_tokens: int
    time_to_first_token_ms: Spread | None
    total_ms: Spread | None
    errors: tuple[str, ...]


def has_valid_citations(answer: Answer, hits: Sequence[str]) -> bool:
    """Whether an answer cites, every citation is of the passage that had its number, and that
    passage was retrieved.

    `hits`: ids of the retrieval, best first. A citation that says where it stands in the text must
    stand there.
    """
    for citation in answer.citations:
        if (
            not 1 <= citation.n <= len(answer.retrieved)
            or answer.retrieved[citation.n - 1].id != citation.doc_id
        ):
            return False
        if citation.doc_id not in hits:
            return False
        if (
            citation.start is not None
            and str(citation.n) not in (answer.answer or "")[citation.start : citation.end]
        ):
            return False
    return bool(answer.citations)


def generated(
    ids: Set[str], answers: Sequence[Answer], hits: Mapping[str, Sequence[str]]
) -> Generated:
    """Returns what became of the queries `ids`. `hits`: ids of each query's retrieval, best
    first.
    """
    first = {answer.query_id: answer for answer in reversed(answers)}
    by_status: dict[str, int] = {}
    for answer in first.values():
        by_status[answer.status] = by_status.get(answer.status, 0) + 1
    good = [answer for answer in first.values() if answer.status in GENERATED]
    valid = sum(has_valid_citations(answer, hits.get(answer.query_id, ())) for answer in good)
    ended = {
        answer.query_id: answer.status
        for answer in first.values()
        if answer.status not in GENERATED
    }
    return Generated(
        books=close_books(
            ids, (answer.query_id for answer in answers if answer.status in GENERATED), ended
        ),
        by_status=dict(sorted(by_status.items())),
        valid_citations=valid,
        valid_citations_share=valid / len(good) if good else 0.0,
        citations=sum(len(answer.citations) for answer in good),
        models=tuple(sorted({answer.model for answer in good if answer.model})),
        output_tokens=sum(
            answer.usage.output_tokens for answer in good if answer.usage is not None
        ),
        time_to_first_token_ms=spread(
            answer.timings_ms["ttft"] for answer in good if "ttft" in answer.timings_ms
        ),
        total_ms=spread(
            answer.timings_ms["total"] for answer in good if "total" in answer.timings_ms
        ),
        errors=tuple(
            dict.fromkeys(answer.error.message for answer in first.values() if answer.error)
        )[:5],
    )
