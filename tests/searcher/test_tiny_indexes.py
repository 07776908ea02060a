"""Indexes of no row, one or two, through the whole searcher; what a new corpus begins with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.clock import SystemClock
from carpool.disk.document_rows import NO_ROW
from carpool.disk.index import open_index
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from indexer.codes import make_codes
from indexer.empty import build_empty
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig
from indexer.stats import index_stats
from indexer.tune import tune_index
from indexer.verify import verify_index
from schemas.query import SearchMode
from searcher.local import LocalSearcher
from searcher.settings import SearcherSettings
from tests.indexer.helpers import CONFIG
from tests.searcher.helpers import (
    Float32,
    SmallIndex,
    exact_top_k,
    make_group,
    normalised,
    running,
    write_index,
)

MODES: tuple[SearchMode, ...] = ("default", "exact")
AUTO = SearcherSettings(direct_io="auto")


def tiny(folder: Path, rows: int, dimension: int, nlist: int, *, has_codes: bool) -> SmallIndex:
    """One cluster has the centroid zero, as an empty index has it; several have random ones."""
    random = np.random.default_rng([rows, dimension, nlist])
    vectors: Float32 = random.standard_normal((rows, dimension)).astype(np.float32)
    centroids = np.zeros((1, dimension), np.float32)
    if nlist > 1:
        centroids = normalised(random.standard_normal((nlist, dimension)))
    scaled = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return write_index(folder, scaled, centroids, has_codes=has_codes)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 2),
    dimension=st.integers(2, 40),
    nlist=st.integers(1, 3),
    has_codes=st.booleans(),
    top_k=st.integers(1, 4),
)
def test_a_tiny_index_finds_what_it_has(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    dimension: int,
    nlist: int,
    has_codes: bool,
    top_k: int,
) -> None:
    index = tiny(tmp_path_factory.mktemp("tiny"), rows, dimension, nlist, has_codes=has_codes)
    assert not verify_index(index.dir, SilentProgress()).problems
    queries = normalised(np.random.default_rng(dimension).standard_normal((3, dimension)))
    with LocalSearcher(index.dir, settings=AUTO) as searcher:
        for mode in MODES:
            for nprobe in (1, nlist):
                found = searcher.search(queries, top_k=top_k, nprobe=nprobe, mode=mode)
                for query, result in zip(queries, found, strict=True):
                    best = exact_top_k(index, query, index.clusters_of(query, nprobe), top_k)
                    assert [hit.doc_id for hit in result.hits] == [f"d{row}" for row in best]
                    scores = [hit.score for hit in result.hits]
                    assert scores == pytest.approx(index.vectors[best] @ query, abs=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("has_codes", [True, False])
def test_the_stage_searches_a_tiny_index(tmp_path: Path, rows: int, has_codes: bool) -> None:
    index = tiny(tmp_path, rows, 16, 1, has_codes=has_codes)
    queries = normalised(np.random.default_rng(1).standard_normal((3, 16)))
    with running(index, direct_io="auto") as here:
        group = make_group(index, list(queries), nprobe=1)
        assert [len(one.hits) for one in here.search(group).values()] == [rows] * 3
        assert not here.sink.answers()


# ---- what a corpus begins with


def empty(folder: Path) -> Path:
    build_empty(folder, CONFIG, SystemClock())
    return folder


def test_an_empty_index_is_whole_has_codes_and_finds_nothing(tmp_path: Path) -> None:
    folder = empty(tmp_path / "empty")
    report = verify_index(folder, SilentProgress())
    assert (report.problems, report.clusters, report.rows) == ((), 1, 0)
    stats = index_stats(folder)
    assert (stats.row_count, stats.dimension, stats.codes) == (0, 16, ("int4",))
    assert (stats.nlist, stats.nprobe_default, stats.cluster_skew) == (1, 1, 1.0)
    index = open_index(folder)
    assert not index.centroids.any()
    assert (index.documents.table.of_places == NO_ROW).all()
    index.close()
    with LocalSearcher(folder, settings=AUTO) as searcher:
        for mode in MODES:
            (found,) = searcher.search(["anything"], mode=mode)
            assert found == ((), (), ())
    make_codes(folder, SilentProgress())
    with pytest.raises(ConfigError, match="has no passages"):
        tune_index(folder, np.eye(200, 16, dtype=np.float32), SilentProgress())


def test_an_empty_index_replaces_no_index_and_no_unfinished_build_unasked(tmp_path: Path) -> None:
    folder = empty(tmp_path / "empty")
    version = index_stats(folder).index_version
    with pytest.raises(ConfigError, match=r"already.*--force"):
        build_empty(folder, CONFIG, SystemClock())
    other = IndexerConfig(embedding=EmbeddingSettings(model="hashing:8"))
    assert build_empty(folder, other, SystemClock(), force=True).dimension == 8
    assert index_stats(folder).index_version != version
    (folder / ".build").mkdir()
    (folder / ".build" / "shards").mkdir()
    (folder / ".build" / "shards" / "shard-000000000.f32").write_bytes(b"work")
    with pytest.raises(ConfigError, match="interrupted build"):
        build_empty(folder, CONFIG, SystemClock(), force=True)
