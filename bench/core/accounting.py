"""Was each question answered once? Published ids against the terminal records that came back. Pure
functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """What became of `published` questions. `foreign`: records of questions that somebody else
    asked; they do not count.

    `answered` had at least one of the records that were looked for, `duplicates` counts those
    beyond a question's first, `other` maps what else ended questions (such as `failed`) to how
    many; `missing_ids` names up to 20 without any record.
    """

    published: int
    answered: int
    missing: int
    duplicates: int
    foreign: int
    other: dict[str, int]
    missing_ids: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether every question was answered, each once, and none ended otherwise."""
        return self.answered == self.published and not (
            self.missing or self.duplicates or any(self.other.values())
        )


def close_books(
    published: Iterable[str], arrived: Iterable[str], ended_otherwise: Mapping[str, str]
) -> Books:
    """Returns the books. `arrived`: the query id of every record looked for, as often as it came.

    `ended_otherwise` maps ids of questions to how else they ended; of one that has a record too,
    both count.
    """
    wanted = set(published)
    seen = Counter(arrived)
    ours = {query_id: times for query_id, times in seen.items() if query_id in wanted}
    other = {query_id: how for query_id, how in ended_otherwise.items() if query_id in wanted}
    missing = sorted(wanted - ours.keys() - other.keys())
    return Books(
        published=len(wanted),
        answered=len(ours),
        missing=len(missing),
        duplicates=sum(ours.values()) - len(ours),
        foreign=seen.total() - sum(ours.values()),
        other=dict(sorted(Counter(other.values()).items())),
        missing_ids=tuple(missing[:20]),
    )
