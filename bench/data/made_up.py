"""A small index of made-up passages, and questions about them."""

from __future__ import annotations

import random
from pathlib import Path

from bench.data.index import BenchIndex, index_of_texts
from carpool.embedding.hashing import HashingEmbedder
from producers.read_questions import Question

DIMENSION = 384
MODEL = f"hashing:{DIMENSION}"
"""Hashed words instead of an embedding model, whose time is not measured."""

PASSAGES = 400
NLIST = 16
QUESTIONS = 500
"""Different questions; a longer load repeats them, each time under a new id."""

WORDS = """river mountain painter treaty orbit enzyme harbour violin glacier senate lantern copper
meadow comet dialect castle desert engine orchard market temple canal"""

ENVIRONMENT = {"CARPOOL_EMBEDDING_MODEL": MODEL, "CARPOOL_LLM_ENGINE": "none"}
"""Settings of the services: no embedding model and no LLM."""


def made_up_index(folder: Path, *, name: str = "made-up-index", nlist: int = NLIST) -> BenchIndex:
    """Returns an index of `PASSAGES` passages in `folder`, built within a second."""
    rng = random.Random(7)
    texts = [_words(rng, 30) for _ in range(PASSAGES)]
    return index_of_texts(texts, index_dir=folder / name, nlist=nlist, model=MODEL)


def made_up_questions(count: int) -> tuple[Question, ...]:
    """Returns `count` questions with text and vector; at most `QUESTIONS` of them differ."""
    rng = random.Random(11)
    texts = ["what of the " + _words(rng, 4) for _ in range(min(count, QUESTIONS))]
    rows = HashingEmbedder(DIMENSION).encode(texts)
    different = [
        Question(text=text, vector=row.astype("<f4").tobytes())
        for text, row in zip(texts, rows, strict=True)
    ]
    return tuple(different[number % len(different)] for number in range(count))


def _words(rng: random.Random, count: int) -> str:
    words = WORDS.split()
    return " ".join(rng.choice(words) for _ in range(count))
