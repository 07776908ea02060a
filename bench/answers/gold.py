"""The gold questions: questions about passages of the corpus, with the answers that are right.

Each was written by hand for one passage of `bench.data.evaluation.CORPUS`, which holds the first
answer word for word. So a small model can answer it, and whether it did is decided without a judge.
Topics take turns in the file: its first questions are of many topics too.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

GOLD_FILE = Path(__file__).with_name("gold_questions.jsonl")

_COMMA_IN_NUMBER = re.compile(r"(?<=\d),(?=\d)")


class GoldQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question of which any of `answers` is right. `passage` is the id of the one to find."""

    id: str
    topic: str
    question: str
    answers: tuple[str, ...]
    passage: str


def read_gold() -> tuple[GoldQuestion, ...]:
    """Returns the gold questions, ordered by id. Raises `msgspec.DecodeError` for a bad file."""
    return tuple(msgspec.json.Decoder(GoldQuestion).decode_lines(GOLD_FILE.read_bytes()))


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
