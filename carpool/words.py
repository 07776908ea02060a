"""Words as two texts are compared by: their beginnings, and numbers whole. It knows no language."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, pairwise
from unicodedata import normalize

STEM_CHARS = 5
"""Letters of a word that are compared: *directed* finds *director*."""
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Thai, Lao, Burmese, Khmer, Japanese, Chinese: a run of letters is many words."""
_MARKS = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff"
"""Accents, and the letters and signs of the scripts of India."""
_LETTERS = rf"[^\W{_NO_SPACES}]"
WORD = re.compile(rf"\d+(?:[.,]\d+)*|[{_NO_SPACES}]+|{_LETTERS}+(?:[{_MARKS}]+{_LETTERS}*)*")
_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")
_RUN = re.compile(rf"[{_NO_SPACES}]")


def words(text: str) -> list[str]:
    """Returns the words of `text` in order, in small letters; of a script without spaces its
    characters and every two neighbours. The commas of thousands are left out; other forms of a
    character, such as wide digits, are its usual one.
    """
    is_ascii = text.isascii()
    found: list[str] = WORD.findall((text if is_ascii else normalize("NFKC", text)).casefold())
    if not is_ascii:
        parts = [
            [*word, *map("".join, pairwise(word))] if _RUN.match(word) else [word] for word in found
        ]
        found = list(chain.from_iterable(parts))
    return [_THOUSANDS.sub("", word) for word in found] if "," in text else found


def is_number(word: str) -> bool:
    """Says whether a word has a digit."""
    return not word.isalpha() and any(char.isdigit() for char in word)


def stems(found: Iterable[str]) -> frozenset[str]:
    """Returns what is compared of words: of a number, which has a digit, all of it."""
    return frozenset(
        [word[:STEM_CHARS] if word.isalpha() or not is_number(word) else word for word in found]
    )
