"""From recorded records to retrievals, vectors and answers, and the accounting of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import numpy as np

from bench.core.accounting import Accounting, account
from bench.core.topic_recorder import ReceivedRecord
from bench.data.evaluation import Float32
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
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
            retrieval = decode_retrieval(record.value, record.headers)
            if isinstance(retrieval, Retrieval) and retrieval.is_final:
                found[record.key] = (retrieval, record.received_us)
    return found


def query_vectors(groups: Iterable[ReceivedRecord]) -> dict[str, Float32]:
    """Returns the vector that the grouper used, by query id: (dim,) float32 each."""
    return {
        grouped.query.query_id: np.frombuffer(grouped.vector, dtype="<f4")
        for record in groups
        for grouped in decode(Group, record.value, record.headers).queries
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
