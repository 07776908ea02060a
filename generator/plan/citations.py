"""Which passages the model cited: the markers `[n]` in its text."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

from carpool.statements import MARKER

CITATIONS_MAX = 64
"""More would make records large."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cited:
    """Passage `n` was cited, by the marker `text[start:end]`."""

    n: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Citations:
    """The citations of passages, and the invented ones: no passage has their number."""

    valid: tuple[Cited, ...]
    invented: tuple[Cited, ...]


def cite(answer: str, *, passages: Container[int]) -> Citations:
    """Returns the markers of `answer` in order; one of several numbers counts for each.

    Numbers that are not in `passages` are invented, and stay in the text. The first
    `CITATIONS_MAX` of each kind are returned.
    """
    written = [
        Cited(n=int(number), start=match.start(), end=match.end())
        for match in MARKER.finditer(answer)
        for number in re.split(r"[,;]", match[1])
    ]
    valid = [cited for cited in written if cited.n in passages]
    invented = [cited for cited in written if cited.n not in passages]
    return Citations(valid=tuple(valid[:CITATIONS_MAX]), invented=tuple(invented[:CITATIONS_MAX]))
