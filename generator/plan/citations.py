"""Which passages the model cited: markers `[n]` in its text, and numbers that it listed. Nothing is
added to either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MARKER = re.compile(r"\[\s*(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\s*\]", re.ASCII)
"""`[2]` or `[1, 3]`. A year in brackets is no marker: numbers have three digits at most, as `top_k`
has.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cited:
    """Passage `n` was cited; `start` and `end` are the characters of its marker in the text, None
    where it was only listed.
    """

    n: int
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Citations:
    """What was cited, and how many citations were dropped: their number is of no passage that was
    given.
    """

    valid: tuple[Cited, ...]
    dropped: int


def cite(answer: str, listed: Sequence[int], *, passages: int, citations_max: int) -> Citations:
    """Returns the citations of `answer`: every marker in the order of the text, then numbers that
    were only listed.

    A number counts once a marker, and once in the list. Numbers outside of 1 to `passages` are
    dropped and counted; the text keeps their markers, as the model wrote it. At most
    `citations_max` are returned, the first ones.
    """
    marked = [
        Cited(n=int(number), start=match.start(), end=match.end())
        for match in MARKER.finditer(answer)
        for number in re.split(r"[,;]", match[1])
    ]
    in_text = {cited.n for cited in marked}
    written = [*marked, *(Cited(n=n) for n in dict.fromkeys(listed) if n not in in_text)]
    valid = [cited for cited in written if 1 <= cited.n <= passages]
    return Citations(valid=tuple(valid[:citations_max]), dropped=len(written) - len(valid))
