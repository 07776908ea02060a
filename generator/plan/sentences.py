"""Where sentences begin and end: by punctuation, knowing initials and a few abbreviations."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SENTENCE_END = re.compile(
    r"(?<=[.!?])"
    r"(?<![ .(][A-Z]\.)(?<!\bc\.)(?<!\b(?:St|Dr|Mr|Ms|Jr|Sr|vs|No|ca|fl)\.)(?<!\bMrs\.)"
    r"[\"'”’)\]]*\s+(?=[\"'“‘(\[]?[A-Z0-9])"
)
"""Space after a sentence: not after an initial or a common abbreviation."""
_WHOLE = re.compile(r"[.!?][\"'”’)\]]*$")


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yields start and end of each sentence of `text`, without the space around it."""
    start = 0
    for end in (*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)):
        sentence = text[start:end]
        if words := sentence.strip():
            begin = start + len(sentence) - len(sentence.lstrip())
            yield begin, begin + len(words)
        start = end


def whole_sentences(text: str) -> str:
    """Returns `text` up to the end of its last whole sentence; empty where it has none."""
    ends = [end for start, end in sentence_spans(text) if _WHOLE.search(text[start:end])]
    return text[: ends[-1]] if ends else ""
