"""Counts for published questions whether each was answered once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec


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
