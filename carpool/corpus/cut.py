"""Cuts a text into passages: along headings, paragraphs and sentences.

It needs the package semantic-text-splitter, of the extra `services`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from schemas.document import DocumentPassage

SEPARATOR = " > "
"""Between the headings of a passage's title."""
_FENCE = re.compile(r" {0,3}(```|~~~)")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def cut_text(
    text: str, *, chars_max: int, is_markdown: bool, title: str = ""
) -> list[DocumentPassage]:
    """Returns the passages of a text, in order, each of at most `chars_max` characters.

    `start` and `end` are its characters in the text. With Markdown the title of a passage is the
    path of the headings that hold for all of it, and begins with `title`, that of the document; no
    passage has headings alone, except where the text has nothing else. Else a passage has no title
    of its own. Takes milliseconds for a megabyte, and seconds where that is one word.
    """
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

    splitter = MarkdownSplitter(chars_max) if is_markdown else TextSplitter(chars_max)
    outline = _Outline(text if is_markdown else "", title)
    passages, headings = list[DocumentPassage](), list[DocumentPassage]()
    for start, chunk in splitter.chunk_indices(text):
        if not chunk.strip():  # control characters that are space in Python, and not in Unicode
            continue
        end = start + len(chunk)
        begins = outline.content_from(start, end) if is_markdown else start
        path = outline.path(end if begins is None else begins, end)
        passage = DocumentPassage(text=chunk, title=path, start=start, end=end)
        (headings if begins is None else passages).append(passage)
    return passages or headings


def looks_like_markdown(text: str) -> bool:
    """Returns whether a text has a heading of Markdown that stands between empty lines."""
    was_heading, is_after_gap, before = False, False, ""
    for _, level, content in _lines(text):
        if was_heading and is_after_gap and not content.strip():
            return True
        was_heading, is_after_gap, before = level > 0, not before.strip(), content
    return was_heading and is_after_gap


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yields (first character, level of a heading or 0, text) of each line of Markdown.

    What begins with # in a block of code is no heading.
    """
    start, fence = 0, ""
    for line in text.splitlines(keepends=True):
        found = None
        if mark := _FENCE.match(line):
            fence = mark[1] if not fence else "" if mark[1] == fence else fence
        elif not fence:
            found = _HEADING.fullmatch(line.rstrip("\r\n"))
        yield (start, len(found[1]), found[2]) if found else (start, 0, line)
        start += len(line)


class _Outline:
    """Where a text of Markdown has headings, and where it has more than these."""

    def __init__(self, text: str, title: str) -> None:
        self._title = title
        self._headings: list[int] = []  # their first characters
        self._paths: list[list[tuple[int, str]]] = []  # from each heading on: levels and names
        self._begins, self._ends = list[int](), list[int]()  # of lines that are no headings
        path: list[tuple[int, str]] = []
        for start, level, content in _lines(text):
            if level:
                name = _LINK.sub(r"\1", content).replace("`", "").replace("*", "")
                path = [*(each for each in path if each[0] < level), (level, name)]
                self._headings.append(start)
                self._paths.append(path)
            elif content.strip():
                self._begins.append(start)
                self._ends.append(start + len(content))

    def content_from(self, start: int, end: int) -> int | None:
        """Returns where a passage has more than headings for the first time; None: nowhere."""
        line = bisect_right(self._ends, start)
        is_within = line < len(self._begins) and self._begins[line] < end
        return max(start, self._begins[line]) if is_within else None

    def path(self, begin: int, end: int) -> str | None:
        """Returns the headings in force in all of a passage, the outermost first; None: none is."""
        first, last = (bisect_left(self._headings, each) for each in (begin, end))
        level = min((path[-1][0] for path in self._paths[first:last]), default=7)
        path = self._paths[first - 1] if first else []
        names = [name for own, name in path if own < level]
        if names and self._title not in ("", names[0]):
            names.insert(0, self._title)
        return SEPARATOR.join(names) or None
