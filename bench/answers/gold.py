"""The gold questions: questions about passages of the corpus, with the answers that are right.

Each was written by hand for one passage of `bench.data.evaluation.CORPUS`, which holds the first
answer word for word. So a small model can answer it, and whether it did is decided without a judge.
Topics take turns in the file: its first questions are of many topics too.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

GOLD_FILE = Path(__file__).with_name("gold_questions.jsonl")


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
