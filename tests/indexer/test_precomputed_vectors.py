"""Vectors: those that a user gives are taken or refused, and all are read from front to back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.embedding.hashing import HashingEmbedder
from carpool.errors import ConfigError, CorruptionError
from indexer import vectors as module
from indexer.plan.state import plan_shards
from indexer.vectors import RowFile, Vectors, open_shards, shard_path
from producers.read_questions import read_questions
from tests.indexer.builds import rows_of
from tests.indexer.helpers import build, write_corpus


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_precomputed_vectors_are_taken_as_they_are_and_rounded_ones_are_normalised_again(
    tmp_path: Path, dtype: type
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 50)
    vectors: np.ndarray = (
        HashingEmbedder(24).encode([f"w{row} w{row + 1}" for row in range(50)]).astype(dtype)
    )
    np.save(tmp_path / "v.npy", vectors)
    manifest = build(
        corpus, tmp_path / "index", vectors=tmp_path / "v.npy", fingerprint="feed"
    ).manifest
    assert (manifest.embedding_model, manifest.dimension) == ("feed", 24)
    stored, expected = rows_of(tmp_path / "index")[0], vectors.astype(np.float32)
    if dtype is np.float32:
        assert np.array_equal(stored, expected)
    else:
        assert (
            np.abs(np.linalg.norm(stored, axis=1) - 1).max()
            < 1e-6
            < np.abs(np.linalg.norm(expected, axis=1) - 1).max()
        )
        assert np.abs(stored - expected).max() < 1e-3
    computed = build(corpus, tmp_path / "other", vectors=tmp_path / "v.npy").manifest
    assert computed.embedding_model == HashingEmbedder(16).fingerprint


def build_ten(folder: Path) -> None:
    build(write_corpus(folder / "c.jsonl", 10), folder / "index", vectors=folder / "v.npy")


def good_vectors() -> np.ndarray:
    return HashingEmbedder(8).encode([str(row) for row in range(10)])


@pytest.mark.parametrize(
    ("vectors", "says"),
    [
        (good_vectors()[:9], "belong to another corpus"),
        (good_vectors().astype(np.float64), "expected float16 or float32"),
        (good_vectors()[0], "expected float16 or float32"),
        (np.asfortranarray(good_vectors()), "row by row"),
        (
            good_vectors() * np.where(np.arange(10) == 7, 2, 1)[:, None].astype(np.float32),
            r"row 7 \(passage 'doc-7'\) from .* has length 2",
        ),
        (np.full((10, 8), np.nan, dtype=np.float32), "row 0 .*'doc-0'.* has length nan"),
        (np.full((10, 8), 1e38, dtype=np.float32), "row 0 .*'doc-0'.* has length inf"),
        (np.zeros((10, 0), dtype=np.float32), "belong to another corpus"),
        (np.array([{}] * 10, dtype=object), "cannot read the vectors"),
    ],
)
def test_precomputed_vectors_that_do_not_fit_are_refused(
    tmp_path: Path, vectors: np.ndarray, says: str
) -> None:
    np.save(tmp_path / "v.npy", vectors, allow_pickle=vectors.dtype == object)
    with pytest.raises(ConfigError, match=says):
        build_ten(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"no numpy file"])
def test_a_vectors_file_that_is_none_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "v.npy").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot read the vectors"):
        build_ten(tmp_path)


@pytest.mark.parametrize("kind", ["npz", "fvecs"])
def test_vectors_of_a_foreign_format_are_named_with_a_command_that_converts_them(
    tmp_path: Path, kind: str
) -> None:
    path, vectors = tmp_path / f"v.{kind}", good_vectors()
    if kind == "npz":
        np.savez(path, vectors)
    else:
        dimensions = np.full((10, 1), 8, np.int32)
        path.write_bytes(np.hstack([dimensions, vectors.view(np.int32)]).tobytes())
    corpus = write_corpus(tmp_path / "c.jsonl", 10)
    with pytest.raises(ConfigError, match=rf"v\.{kind} is .*\.{kind}") as refused:
        build(corpus, tmp_path / "index", vectors=path)
    command = str(refused.value).rpartition("file: ")[2].removeprefix("python")
    subprocess.run(sys.executable + command, shell=True, check=True)
    build(corpus, tmp_path / "index", vectors=tmp_path / f"v.{kind}.npy")
    with pytest.raises(ConfigError, match="convert it"):
        read_questions(path)


# ---- vectors are read from front to back, and gathered in one pass


def normalised(row_count: int, dimension: int) -> np.ndarray:
    rows = (
        np.random.default_rng(row_count).standard_normal((row_count, dimension)).astype(np.float32)
    )
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def saved_shards(folder: Path, rows: np.ndarray, shard_rows: int) -> Vectors:
    shards = plan_shards(len(rows), shard_rows)
    for shard in shards:
        shard_path(folder, shard).write_bytes(rows[shard.start : shard.stop].tobytes() + b"crc!")
    return open_shards(folder, shards, rows.shape[1])


@given(row_count=st.integers(1, 200), shard_rows=st.integers(1, 70), chunk_rows=st.integers(1, 60))
def test_chunks_are_the_same_whatever_the_files(
    tmp_path_factory: pytest.TempPathFactory, row_count: int, shard_rows: int, chunk_rows: int
) -> None:
    rows = normalised(row_count, 5)
    vectors = saved_shards(tmp_path_factory.mktemp("v"), rows, shard_rows)
    with patch.object(module, "CHUNK_ROWS", chunk_rows):
        chunks = [(first, chunk.copy()) for first, chunk in vectors.chunks()]
    assert [first for first, _ in chunks] == list(range(0, row_count, chunk_rows))
    assert np.array_equal(np.concatenate([chunk for _, chunk in chunks]), rows)


@given(data=st.data(), dtype=st.sampled_from([np.float32, np.float16]))
def test_gathering_is_indexing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: type
) -> None:
    rows = normalised(100, 5)
    vectors = saved_shards(tmp_path_factory.mktemp("v"), rows, 17)
    wanted = np.array(data.draw(st.lists(st.integers(0, 99), unique=True)), dtype=np.int64)
    taken: np.ndarray = np.empty((len(wanted), 5), dtype=dtype)
    went_by: list[int] = []
    with patch.object(module, "CHUNK_ROWS", data.draw(st.integers(1, 110))):
        vectors.gather(wanted, taken, went_by.append)
    assert np.array_equal(taken, rows[wanted].astype(dtype))
    assert sum(went_by) == 100


def test_a_file_that_was_cut_during_the_build_is_an_error_that_names_its_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "v").write_bytes(bytes(5 * 4 * 3 + 7))
    vectors = Vectors([RowFile(tmp_path / "v", 4, 4)], dimension=5)
    with pytest.raises(CorruptionError, match="ends at byte 67") as caught:
        list(vectors.chunks())
    assert caught.value.offset_bytes == 67
