"""A small index of made-up passages, and questions about them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from bench.data.index import BenchIndex, built
from carpool.embedding import EmbeddingSettings
from carpool.embedding.hashing import HashingEmbedder
from indexer.settings import IndexerConfig
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


def made_up_index(
    folder: Path,
    *,
    name: str = "made-up-index",
    nlist: int = NLIST,
    more: Mapping[str, str] = MappingProxyType({}),
) -> BenchIndex:
    """Returns an index of `PASSAGES` passages in `folder`, with codes, built within a second.

    Their vectors are of their texts alone. `more`: texts of further passages, by id.
    `passages_path` has the passages.
    """
    rng = random.Random(7)
    texts = [_words(rng, 30) for _ in range(PASSAGES)] + [*more.values()]
    ids = [f"passage-{number}" for number in range(PASSAGES)] + [*more]
    index_dir, corpus = folder / name, passages_path(folder / name)
    folder.mkdir(parents=True, exist_ok=True)
    rows = (
        {"id": id, "title": f"Passage {number}", "text": text}
        for number, (id, text) in enumerate(zip(ids, texts, strict=True))
    )
    corpus.write_bytes(b"\n".join(map(msgspec.json.encode, rows)) + b"\n")
    vectors = folder / f"{name}-vectors.npy"
    np.save(vectors, HashingEmbedder(DIMENSION).encode(texts))
    config = IndexerConfig(embedding=EmbeddingSettings(model=MODEL))
    return built(corpus, index_dir, config, vectors=vectors, nlist=nlist)


def passages_path(index_dir: Path) -> Path:
    """Returns the passages of a made-up index, JSON lines."""
    return index_dir.with_name(f"{index_dir.name}-corpus.jsonl")


def made_up_questions(count: int, *, are_vectors: bool = True) -> tuple[Question, ...]:
    """Returns `count` questions, by text or also by vector; at most `QUESTIONS` of them differ."""
    rng = random.Random(11)
    texts = ["what of the " + _words(rng, 4) for _ in range(min(count, QUESTIONS))]
    rows = HashingEmbedder(DIMENSION).encode(texts)
    different = [
        Question(text=text, vector=row.astype("<f4").tobytes() if are_vectors else None)
        for text, row in zip(texts, rows, strict=True)
    ]
    return tuple(different[number % len(different)] for number in range(count))


def _words(rng: random.Random, count: int) -> str:
    words = WORDS.split()
    return " ".join(rng.choice(words) for _ in range(count))
