"""Which passages the model cited: markers `[n]` in its text, and numbers that it listed."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

MARKER = re.compile(r"\[\s*(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\s*\]", re.ASCII)
"""`[2]` or `[1, 3]`. Numbers have at most three digits, as `top_k` has: a year is no marker."""

CITATIONS_MAX = 64
"""More would make records large."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cited:
    """Passage `n` was cited, by the marker `text[start:end]`, or only in the list (None)."""

    n: int
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Citations:
    """The citations of passages, and the invented ones: no passage has their number."""

    valid: tuple[Cited, ...]
    invented: tuple[Cited, ...]


def cite(answer: str, listed: Sequence[int], *, passages: Container[int]) -> Citations:
    """Returns the citations of `answer`: its markers in order, then numbers that were only listed.

    A number counts once for each marker, and once in the list. Numbers that are not in
    `passages` are invented, and stay in the text. The first `CITATIONS_MAX` of each kind are
    returned.
    """
    marked = [
        Cited(n=int(number), start=match.start(), end=match.end())
        for match in MARKER.finditer(answer)
        for number in re.split(r"[,;]", match[1])
    ]
    in_text = {cited.n for cited in marked}
    written = [*marked, *(Cited(n=n) for n in dict.fromkeys(listed) if n not in in_text)]
    valid = [cited for cited in written if cited.n in passages]
    invented = [cited for cited in written if cited.n not in passages]
    return Citations(valid=tuple(valid[:CITATIONS_MAX]), invented=tuple(invented[:CITATIONS_MAX]))
