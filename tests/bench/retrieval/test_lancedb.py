"""LanceDB as a contestant: it finds what a search of the probed clusters finds, alone and batched,
or says what it lacks.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.retrieval.arrivals import ClosedLoop
from bench.retrieval.contestant import Dataset, Limits
from bench.retrieval.contestants.lancedb import (
    ENTRIES,
    INDEX_CACHE_BYTES_MIN,
    LanceDb,
    index_cache_bytes,
    make_table,
    preparation_name,
)
from bench.retrieval.dataset import IndexView, open_view
from carpool.disk.centroids import probe
from carpool.errors import ConfigError
from tests.bench.retrieval.conftest import unit_rows

NPROBE = 3
TOP_K = 5
LIMITS = Limits(memory_bytes=1 << 30, threads=1, window=7)
ENTRY = {entry.name: entry for entry in ENTRIES}

has_lance = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("lancedb", "lance")),
    reason="LanceDB is not installed (pip install 'carpool[bench]')",
)


@pytest.fixture(scope="module")
def prepared(
    tiny_index: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Dataset, IndexView]:
    """The tiny index with the tables of all variants, and 30 queries."""
    view = open_view(tiny_index)
    queries = unit_rows(np.random.default_rng(9), 30)
    dataset = Dataset(
        index_dir=tiny_index,
        prepared_dir=tmp_path_factory.mktemp("prepared"),
        dimension=view.dimension,
        nlist=view.nlist,
        row_count=view.row_count,
        top_k=TOP_K,
        queries=queries,
        probes=probe(view.centroids, queries, NPROBE),
    )
    for preparation in {
        entry.preparation.name: entry.preparation for entry in ENTRIES if entry.preparation
    }.values():
        (dataset.prepared_dir / preparation.name).mkdir()
        preparation.make(dataset, dataset.prepared_dir / preparation.name)
    return dataset, view


def _expected(dataset: Dataset, view: IndexView) -> list[list[int]]:
    """The best rows of the probed clusters, one query after the other."""
    clusters = {cluster.cluster: cluster for cluster in view.clusters()}
    found = []
    for query, probes in zip(dataset.queries, dataset.probes, strict=True):
        rows = np.concatenate([clusters[int(number)].rows for number in probes])
        vectors = np.concatenate([clusters[int(number)].vectors for number in probes])
        found.append(rows[np.argsort(-(vectors @ query))[:TOP_K]].tolist())
    return found


@has_lance
@pytest.mark.parametrize("name", sorted(ENTRY))
def test_every_query_gets_the_best_rows_of_the_clusters_that_it_probes(
    prepared: tuple[Dataset, IndexView], name: str
) -> None:
    """All of them with whole vectors; by codes of one bit, with most rows re-ranked, nearly all."""
    dataset, view = prepared
    contestant = ENTRY[name].make()
    assert contestant.name == name
    contestant.open(dataset, LIMITS)
    try:
        arrivals = ClosedLoop(dataset, range(30), window=LIMITS.window)
        found = {}
        for result in contestant.run(arrivals):
            arrivals.answered(result.query)
            assert result.is_final
            assert result.ids.dtype == np.int64
            found[result.query] = result.ids.tolist()
    finally:
        contestant.close()
    expected = _expected(dataset, view)
    if ENTRY[name].is_exact:
        assert [found[number] for number in range(30)] == expected
    else:
        assert (
            np.mean([len(set(found[number]) & set(expected[number])) for number in range(30)])
            > 0.97 * TOP_K
        )


@has_lance
def test_a_table_holds_the_rows_in_the_order_of_the_corpus_and_nothing_else_is_left(
    prepared: tuple[Dataset, IndexView],
) -> None:
    import lance

    dataset, view = prepared
    rows = np.concatenate([cluster.rows for cluster in view.clusters()])
    vectors = np.concatenate([cluster.vectors for cluster in view.clusters()])
    for kind in ("IVF_FLAT", "IVF_RQ"):
        folder = dataset.prepared_dir / preparation_name(kind)
        assert [path.name for path in folder.iterdir()] == ["vectors.lance"]
        table = lance.dataset(str(folder / "vectors.lance"))
        content = table.to_table()
        assert content["row"].to_pylist() == list(range(view.row_count))
        stored = np.array(content["vector"].to_pylist(), dtype=np.float32)
        assert (stored == vectors[np.argsort(rows)]).all()
        statistics = table.stats.index_stats("vector_idx")
        assert statistics["index_type"] == kind
        assert statistics["indices"][0]["num_partitions"] == view.nlist


def test_without_its_packages_it_says_what_to_install(
    dataset: Dataset, tmp_path: Path, without_lance: None
) -> None:
    contestant = LanceDb("lancedb-flat", kind="IVF_FLAT", batched=False)
    with pytest.raises(ConfigError, match=r"lancedb is not installed.*carpool\[bench\]"):
        contestant.open(dataset, LIMITS)
    with pytest.raises(ConfigError, match=r"lance is not installed.*carpool\[bench\]"):
        make_table(dataset, tmp_path, "IVF_FLAT")


@pytest.fixture
def without_lance(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine where neither package is installed: Python then refuses the import."""
    monkeypatch.setitem(sys.modules, "lancedb", None)
    monkeypatch.setitem(sys.modules, "lance", None)
    yield


def test_its_cache_takes_what_the_limit_leaves() -> None:
    assert index_cache_bytes(1 << 30) < 1 << 30
    assert index_cache_bytes(1 << 30) - index_cache_bytes(1 << 29) == 1 << 29
    assert index_cache_bytes(100 << 20) == INDEX_CACHE_BYTES_MIN


def test_only_what_keeps_all_vectors_claims_to_be_exact() -> None:
    assert set(ENTRY) == {
        "lancedb-flat",
        "lancedb-flat-batched",
        "lancedb-rq",
        "lancedb-rq-batched",
    }
    assert [entry.name for entry in ENTRIES if entry.is_exact] == [
        "lancedb-flat",
        "lancedb-flat-batched",
    ]
