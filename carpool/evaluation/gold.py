"""Whether a text has an answer that is known to be right. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_COMMA_IN_NUMBER = re.compile(r"(?<=\d),(?=\d)")


def has_gold(text: str, answers: Sequence[str]) -> bool:
    """Says whether `text` contains any of `answers`, as whole words.

    Case, the width of spaces, compatibility forms of Unicode, and commas between digits make no
    difference. "1" is not in "10" or "1.5". A text that denies an answer contains it too.
    """
    searched = _comparable(text)
    return any(_has_words(searched, _comparable(answer)) for answer in answers)


def f1(text: str, answers: Sequence[str]) -> float:
    """Returns the F1 of the words of `text` with the nearest of `answers`, as SQuAD defines it.

    Case, articles and punctuation make no difference. A long answer has a low F1.
    """
    said = _words(text)
    return max((_f1(said, _words(answer)) for answer in answers), default=0.0)


def _f1(said: Counter[str], right: Counter[str]) -> float:
    both = (said & right).total()
    return 2 * both / (said.total() + right.total()) if both else 0.0


def _words(text: str) -> Counter[str]:
    words = re.findall(r"\w+", _comparable(text))
    return Counter(word for word in words if word not in ("a", "an", "the"))


def _comparable(text: str) -> str:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _COMMA_IN_NUMBER.sub("", " ".join(folded.split()))


def _has_words(text: str, words: str) -> bool:
    # A digit on the other side of a point belongs to the same number.
    whole = rf"(?<!\w)(?<!\d\.){re.escape(words)}(?!\w)(?!\.\d)"
    return bool(words) and re.search(whole, text) is not None
