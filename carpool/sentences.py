"""Where sentences begin and end: by punctuation, knowing initials and a few abbreviations."""

from __future__ import annotations

import re
from collections.abc import Iterator

SENTENCE_CHARS_MAX = 400
_SENTENCE_END = re.compile(
    r"(?<=[.!?؟।])"
    r"(?<![ .(*][A-Z]\.)(?<!^[A-Z]\.)(?<!\bc\.)"
    r"(?<!\b(?:St|Dr|Mr|Ms|Jr|Sr|vs|No|ca|fl)\.)(?<!\bMrs\.)"
    r"(?<!\b(?:i\.e|e\.g)\.)"
    r"[\"'”’)\]]*\s+(?=[\"'“‘(\[«„¿¡]?[^\W_a-zß-öø-ÿα-ωά-ώа-џ])"
    r"|(?<=[。！？])[”’」』）]*\s*"
    r"|\n[ \t]*\n\s*"
)
"""Space after a sentence: not after an initial or a common abbreviation, nor before a small letter.
Chinese and Japanese write no space. An empty line ends a sentence, such as a heading.
"""
_LAST_SPACE = re.compile(r"\s+\S*\Z")
_WHOLE = re.compile(r"[.!?؟।。！？][\"'”’)\]」』）]*$")


def sentence_spans(text: str, chars_max: int | None = None) -> Iterator[tuple[int, int]]:
    """Yields start and end of each sentence of `text`, without the space around it.

    A sentence of more than `chars_max` characters is cut at words into several.
    """
    start = 0
    for end in (*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)):
        sentence = text[start:end]
        if words := sentence.strip():
            begin = start + len(sentence) - len(sentence.lstrip())
            stop = begin + len(words)
            while chars_max is not None and stop - begin > chars_max:
                space = _LAST_SPACE.search(text, begin, begin + chars_max + 1)
                yield begin, (cut := space.start() if space else begin + chars_max)
                begin = stop - len(text[cut:stop].lstrip())
            yield begin, stop
        start = end


def whole_sentences(text: str) -> str:
    """Returns `text` up to the end of its last whole sentence; empty where it has none."""
    ends = [end for start, end in sentence_spans(text) if _WHOLE.search(text[start:end])]
    return text[: ends[-1]] if ends else ""
