"""The inputs of a run: evaluation data, vectors, and the memory of processes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from bench.data.evaluation import find_data, read_evidence, read_passages, read_vectors
from carpool.errors import ConfigError


def test_without_data_it_says_how_to_name_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CARPOOL_DATA"):
        find_data(None, {})
    with pytest.raises(ConfigError, match="there is no folder"):
        find_data(tmp_path / "none", {})
    found = find_data(None, {"CARPOOL_DATA": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"have no wikipedia-16k\.jsonl\.gz"):
        _ = found.corpus_path


def test_evidence_is_a_set_of_passages_a_query_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "evidence.tsv"
    path.write_text("q-1\ta\nq-2\tb\n\nq-1\tc\n")
    assert read_evidence(path) == {"q-1": frozenset({"a", "c"}), "q-2": frozenset({"b"})}
    path.write_text("q-1\ta\nq-2 b\n")
    with pytest.raises(ConfigError, match=r"evidence\.tsv:2"):
        read_evidence(path)


def test_passages_keep_the_order_of_the_corpus_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "b", "text": "x"}\n{"id": 7, "text": "y"}\n'))
    assert [passage.doc_id for passage in read_passages(path)] == ["b", "7"]
    path.write_bytes(gzip.compress(b'{"id": "b", "text": "x"}\n{"text": "x"}\n'))
    with pytest.raises(ConfigError, match=r"gz:2: "):
        read_passages(path)


def test_half_precision_vectors_come_out_at_length_one(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    np.save(path, np.array([[0.6, 0.8], [0.5999, 0.8]] * 9_000, dtype=np.float16))
    vectors = read_vectors(path)
    assert (vectors.dtype, len(vectors)) == (np.float32, 18_000)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    assert vectors[-2] == pytest.approx([0.6, 0.8], abs=1e-3)
    np.save(path, np.array([[1.0, 0.0], [0.0, 0.0]], dtype=np.float32))
    with pytest.raises(ConfigError, match=r"row 1 from .*vectors\.npy has length 0"):
        read_vectors(path)
    np.save(path, np.array([1, 2]))
    with pytest.raises(ConfigError, match="expected float16 or float32"):
        read_vectors(path)
