"""From recorded records to retrievals and answers, and whether each question has one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec

from bench.core.topic_recorder import ReceivedRecord
from schemas.answer import Answer
from schemas.codec import decode, decode_retrieval
from schemas.retrieval import Retrieval

ANSWERED = ("ok", "partial")
"""Statuses of answers that contain an answer."""


class Accounting(msgspec.Struct, frozen=True, kw_only=True):
    """What became of `published` questions.

    `answered`: questions with at least one record. `duplicates`: records beyond a question's
    first. `other`: questions that ended in another way, by that way (such as `failed`). Records of
    questions that were not published are not counted.
    """

    published: int
    answered: int
    missing: int
    duplicates: int
    other: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether every question was answered, each once, and none ended in another way."""
        return self.answered == self.published and not (
            self.missing or self.duplicates or any(self.other.values())
        )


def account(
    published: Iterable[str],
    received: Iterable[str],
    ended_otherwise: Mapping[str, str] | None = None,
) -> Accounting:
    """Returns the accounting of `published` question ids.

    `received`: the question id of every record, as often as it came. `ended_otherwise` maps
    question ids to how else they ended; a question with a record too counts in both.
    """
    wanted = set(published)
    ours = Counter(query_id for query_id in received if query_id in wanted)
    other = {key: how for key, how in (ended_otherwise or {}).items() if key in wanted}
    return Accounting(
        published=len(wanted),
        answered=len(ours),
        missing=len(wanted - ours.keys() - other.keys()),
        duplicates=ours.total() - len(ours),
        other=dict(sorted(Counter(other.values()).items())),
    )


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
