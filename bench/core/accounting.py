"""Whether each question has one answer, from recorded records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from schemas.answer import Answer

ANSWERED = ("ok", "partial")
"""Statuses of answers that contain an answer."""


class Accounting(msgspec.Struct, frozen=True, kw_only=True):
    """What became of `published` questions.

    `answered`: those with a record and without a failed one; `missing`: the others. `duplicates`:
    records beyond a question's first. Records of questions that were not published are not counted.
    """

    published: int
    answered: int
    missing: int
    duplicates: int

    @property
    def holds(self) -> bool:
        """Whether every question was answered, each once."""
        return not (self.missing or self.duplicates)


def account(
    published: Iterable[str], received: Iterable[str], failed: Collection[str] = ()
) -> Accounting:
    """Returns the accounting of `published` question ids.

    `received`: the question id of every record, as often as it came; `failed`: of failed ones.
    """
    wanted = set(published)
    ours = Counter(query_id for query_id in received if query_id in wanted)
    answered = len(ours.keys() - set(failed))
    return Accounting(
        published=len(wanted),
        answered=answered,
        missing=len(wanted) - answered,
        duplicates=ours.total() - len(ours),
    )


def answer_accounting(ids: Iterable[str], answers: Sequence[Answer]) -> Accounting:
    """Returns whether each query has one answer with a status of `ANSWERED`."""
    failed = {each.query_id for each in answers if each.status not in ANSWERED}
    return account(ids, (each.query_id for each in answers), failed)
