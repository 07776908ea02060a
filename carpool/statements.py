"""The statements of an answer, and the markers `[n]` of its citations. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from carpool.sentences import SENTENCE_CHARS_MAX, sentence_spans
from carpool.words import WORD

MARKER = re.compile(r"\[\s*(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\s*\]", re.ASCII)
"""`[2]` or `[1, 3]`. Numbers have at most three digits, as `top_k` has: a year is no marker."""
ANSWER_CHARS_MAX = 20_000
"""The beginning of an answer that is read, so that long ones cost no more."""
STATEMENTS_MAX = 100

_BULLET = re.compile(r"^[ \t]*(?:[-*•>#]+|\(?\d{1,3}[.)])[ \t]+", re.MULTILINE)
"""What begins a row of a list: its number is none that a passage must have."""
_SOURCE = re.compile(
    rf"{MARKER.pattern}|[\[(【]\s*(?:passages?\s+)?\d{{1,3}}(?:\s*(?:[-–,;]|and)\s*\d{{1,3}})*\s*"
    r"[\])】]|\b(?:passages?|sources?)\s+\d{1,3}\b",
    re.IGNORECASE,
)
"""What names a passage, or a row: `[1]`, `(2)`, "passage 3". It is no number of the statement."""
_MARKERS = re.compile(rf"(?:\s*{MARKER.pattern})+", re.ASCII)
_LINE = re.compile(r"[^\r\n]+")


def statements(answer: str) -> Iterator[tuple[int, int, str]]:
    """Yields start, end and text of each statement of an answer, the first `STATEMENTS_MAX`.

    It is a sentence, or a part of one with several markers; a line ends a sentence. The text has
    spaces in place of markers, other names of passages, and of what begins a row of a list.
    """
    answer = answer[:ANSWER_CHARS_MAX]
    plain = _BULLET.sub(_spaces, _SOURCE.sub(_spaces, answer))
    spans = (
        (begin, stop)
        for line in _LINE.finditer(plain)
        for start, end in sentence_spans(line[0], SENTENCE_CHARS_MAX)
        for begin, stop in _parts(answer, line.start() + start, line.start() + end)
        if WORD.search(plain, begin, stop)
    )
    for begin, stop in islice(spans, STATEMENTS_MAX):
        yield begin, stop, plain[begin:stop]


def without_markers(text: str) -> str:
    """Returns the text without markers such as `[1]`, which are form and not content."""
    return _MARKERS.sub("", text)


def _parts(answer: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of a sentence: each ends with its markers, the last with the sentence."""
    for markers in list(_MARKERS.finditer(answer, start, end))[:-1]:
        yield start, markers.end()
        start = end - len(answer[markers.end() : end].lstrip(" ,;"))
    yield start, end


def _spaces(match: re.Match[str]) -> str:
    return " " * len(match[0])
