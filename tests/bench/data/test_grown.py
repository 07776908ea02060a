"""A grown set: the same bytes for the same seed, kept only when it behaves as the real one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from bench.cli import app
from bench.data import grown
from bench.data.evaluation import QUESTIONS, EvaluationData, find_data, read_vectors
from bench.data.grown import (
    NPROBE,
    SPREADS,
    TOP_K,
    cluster,
    nearest_passages,
    recall_ceiling,
    run,
    usual_spread,
)
from bench.data.options import GrowOptions
from carpool.embedding.hashing import HashingEmbedder
from carpool.errors import ConfigError
from indexer.vectors import open_precomputed
from tests.bench.helpers import write_embedded

DIMENSION = 48
PASSAGES = 1500
ROWS = 3000
SPREAD = 1.1
"""What fits these passages."""


def _sentence(random: np.random.Generator, subject: int) -> str:
    """Words of a subject and of everybody's, so that passages of a subject are near each other."""
    own = [f"w{subject}x{word}" for word in random.integers(0, 12, 5)]
    common = [f"common{word}" for word in random.integers(0, 40, 3)]
    return " ".join(["The", *own, *common]) + "."


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> EvaluationData:
    """A small folder of evaluation data: texts of 60 subjects, embedded by hashing their words."""
    folder = tmp_path_factory.mktemp("data")
    random, embedder = np.random.default_rng(7), HashingEmbedder(DIMENSION)
    for name, count in (("wikipedia-16k", PASSAGES), *((name, 450) for name in QUESTIONS)):
        texts = [_sentence(random, int(random.integers(60))) for _ in range(count)]
        rows = [{"id": f"{row}", "text": text} for row, text in enumerate(texts)]
        titles = [{"title": f"T{row}"} if count == PASSAGES else {} for row in range(count)]
        rows = [row | title for row, title in zip(rows, titles, strict=True)]
        write_embedded(folder, name, rows, embedder.encode(texts))
    return EvaluationData(folder=folder)


def grow(data: EvaluationData, out: Path, *, spread: float = SPREAD, rows: int = ROWS) -> Result:
    given = {"--rows": rows, "--out": out, "--data": data.folder, "--spread": spread, "--seed": 3}
    return CliRunner().invoke(
        app, ["data", *(str(word) for pair in given.items() for word in pair)]
    )


def test_the_same_seed_gives_the_same_set_and_its_questions_are_real(
    data: EvaluationData, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for out in (one, other):
        said = grow(data, out)
        assert said.exit_code == 0, said.output
    for name in ("vectors.npy", "corpus.jsonl", "queries.npy"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert json.loads((one / "grown.json").read_text())["settings"]["seed"] == 3
    vectors = np.load(one / "vectors.npy")
    assert (vectors.shape, vectors.dtype) == ((ROWS, DIMENSION), np.float16)
    assert np.linalg.norm(vectors.astype(np.float32), axis=1) == pytest.approx(1, abs=2e-3)
    lines = [json.loads(line) for line in (one / "corpus.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"grown-{row}" for row in range(ROWS)]
    assert lines[PASSAGES + 4]["title"] == "T4"
    queries = np.load(one / "queries.npy")
    real = np.concatenate([read_vectors(data.vectors_path(name)) for name in QUESTIONS])
    assert len(queries) == len(np.unique(queries, axis=0)) < len(real)
    assert {row.tobytes() for row in queries} < {row.tobytes() for row in real}


def test_a_set_that_does_not_behave_as_the_real_one_ends_with_1(
    data: EvaluationData, tmp_path: Path
) -> None:
    said = grow(data, tmp_path / "set", spread=40)
    assert said.exit_code == 1
    assert "BROKEN" in said.output
    said = grow(data, tmp_path / "set")
    assert isinstance(said.exception, ConfigError) and "File exists" in str(said.exception)


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_the_ceiling_is_the_share_of_the_nearest_rows_in_the_probed_clusters(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows, asked = (random.standard_normal((count, 8)).astype(np.float32) for count in (2_000, 20))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, rows)
    vectors = open_precomputed(path)
    centroids, clusters = cluster(vectors, nlist=100, seed=seed)
    inside = [
        clusters[row] in np.argsort(-(centroids @ question))[:NPROBE]
        for question in asked
        for row in np.argsort(-(rows @ question))[:TOP_K]
    ]
    assert recall_ceiling(vectors, asked, seed) == pytest.approx(np.mean(inside))


def test_neighbours_are_the_nearest_passages_without_the_passage_itself() -> None:
    vectors = np.random.default_rng(2).standard_normal((300, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[7:12] = vectors[7]
    found = nearest_passages(vectors, 3)
    for row in (0, 7, 11, 299):
        assert row not in found[row]
        best = np.sort(np.delete(vectors @ vectors[row], row))[-3:]
        assert np.sort(vectors[found[row]] @ vectors[row]) == pytest.approx(best, abs=1e-6)
    with pytest.raises(ConfigError, match="too few"):
        nearest_passages(vectors[:2], 1)


def test_more_rows_need_a_larger_spread() -> None:
    for rows, spread in SPREADS:
        assert usual_spread(rows) == pytest.approx(spread)
    assert SPREADS[0][1] < usual_spread(50_000) < SPREADS[1][1]


@pytest.mark.data
@pytest.mark.long
def test_a_set_grown_from_the_real_data_behaves_as_they_do(tmp_path: Path) -> None:
    data = find_data(None)
    assert run(GrowOptions(out=tmp_path / "set", rows=24_000, seed=1, data=data.folder))


# ---- a set of the passages and their sentences


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
