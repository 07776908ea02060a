"""`LocalSearcher` finds what an exact search of the probed clusters finds, and refuses the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from carpool.embedding import EmbeddingSettings
from carpool.embedding.loader import load_embedder
from carpool.errors import ConfigError
from searcher.local import LocalSearcher
from tests.forks import in_fork
from tests.searcher.helpers import SmallIndex, random_index

BUDGET_BYTES = 2 << 20


@pytest.mark.parametrize("nprobe", [1, 3, 8])
def test_vectors_find_the_best_rows_of_the_clusters_that_they_probe(
    index: SmallIndex, nprobe: int
) -> None:
    queries = index.vectors[:20] + np.float32(0.01)
    with LocalSearcher(index.dir, budget_bytes=BUDGET_BYTES, nprobe=nprobe) as searcher:
        assert searcher.search(queries[:0]) == []
        for _ in range(2):  # from the disk, then from memory
            results = searcher.search(queries, top_k=5)
    for query, result in zip(queries, results, strict=True):
        rows = np.flatnonzero(np.isin(index.assigned, index.clusters_of(query, nprobe)))
        best = rows[np.argsort(-(index.vectors[rows] @ query), kind="stable")[:5]]
        assert [hit.doc_id for hit in result.hits] == [f"d{row}" for row in best]
        assert [hit.title for hit in result.hits] == [f"Title {row}" for row in best]
        assert [hit.score for hit in result.hits] == pytest.approx(index.vectors[best] @ query)
        assert not result.skipped_clusters and not result.errors


def test_texts_are_embedded_by_the_model_of_the_index(tmp_path: Path) -> None:
    settings = EmbeddingSettings(model="hashing:16")
    model = load_embedder(settings)
    index = random_index(tmp_path / "index", embedding_model=model.fingerprint)
    with LocalSearcher(index.dir, budget_bytes=BUDGET_BYTES, embedding=settings) as searcher:
        assert searcher.search(["a question"]) == searcher.search(model.encode(["a question"]))
        assert searcher.search(["caf\udce9"]) == searcher.search(["caf\ufffd"])


def test_a_searcher_that_was_opened_before_a_fork_works_on_both_sides(tmp_path: Path) -> None:
    settings = EmbeddingSettings(model="hashing:16")
    model = load_embedder(settings)
    index = random_index(tmp_path / "index", embedding_model=model.fingerprint)

    def find() -> str:
        return ",".join(hit.doc_id for hit in searcher.search(["a question"])[0].hits)

    def find_and_close() -> str:
        found = find()
        searcher.close()
        return found

    with LocalSearcher(index.dir, budget_bytes=BUDGET_BYTES, embedding=settings) as searcher:
        found = find()
        with searcher._lock:  # another thread of the parent searches now
            assert in_fork(find_and_close) == found
        assert in_fork(lambda: str(searcher.close())) == "None"
        assert find() == found


def test_another_model_is_refused(index: SmallIndex) -> None:
    other = EmbeddingSettings(model="hashing:16")
    with (
        LocalSearcher(index.dir, budget_bytes=BUDGET_BYTES, embedding=other) as searcher,
        pytest.raises(ConfigError, match="is not the one that the index was built with"),
    ):
        searcher.search(["a question"])


def test_queries_that_do_not_fit_are_refused_with_the_reason(index: SmallIndex) -> None:
    one = index.vectors[:1]
    with LocalSearcher(index.dir, budget_bytes=BUDGET_BYTES) as searcher:
        with pytest.raises(ValueError, match=r"shape \(1, 15\); the index needs \(n, 16\)"):
            searcher.search(one[:, :15])
        with pytest.raises(ValueError, match="not finite"):
            searcher.search(one * np.float32(np.nan))
        with pytest.raises(ValueError, match="one text"):
            searcher.search("a question")
        with pytest.raises(ValueError, match="top_k is 0"):
            searcher.search(one, top_k=0)
        with pytest.raises(ValueError, match="nprobe is 9; it must be from 1 to 8"):
            searcher.search(one, nprobe=9)
    with pytest.raises(ValueError, match="closed"):
        searcher.search(one)
    searcher.close()
    with pytest.raises(ConfigError, match="budget_bytes"):
        LocalSearcher(index.dir, budget_bytes=4096)
