"""A set of the passages and their sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.data import grown
from bench.data.evaluation import QUESTIONS
from bench.data.grown import run
from bench.data.options import GrowOptions
from carpool.embedding.hashing import HashingEmbedder
from tests.bench.helpers import write_embedded


def test_sentences_of_a_passage_stand_behind_all_passages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = HashingEmbedder(16)
    monkeypatch.setattr(grown, "load_embedder", lambda _, **__: embedder)
    long = [f"Sentence {number} {'about a subject ' * 4}ends." for number in range(2)]
    texts = [f"{long[0]} Short. {long[1]}", long[0]]
    for name in ("wikipedia-16k", *QUESTIONS):
        rows = [{"id": str(row), "title": "T", "text": text} for row, text in enumerate(texts)]
        write_embedded(tmp_path, name, rows, embedder.encode([f"{name} {text}" for text in texts]))
    assert run(GrowOptions(out=tmp_path / "set", data=tmp_path, sentences=True))
    lines = (tmp_path / "set" / "corpus.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["text"] for each in found] == [*texts, *long]  # one that is all is not there twice
    assert [each["id"] for each in found] == ["row-0", "row-1", "row-2", "row-3"]
    vectors = np.load(tmp_path / "set" / "vectors.npy")
    expected = embedder.encode([f"T. {text}" for text in long])
    assert vectors.dtype == np.float16 and np.allclose(vectors[2:], expected, atol=1e-3)
    assert len(np.load(tmp_path / "set" / "queries.npy")) == 4
