"""Every contestant finds what scoring every probed row finds."""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bench.core.memory import memory_of
from bench.data.clusters import clusters_bytes, open_clusters, read_clusters
from bench.search.contestants.carpool import GROWTH_BYTES, Carpool, budget_for
from bench.search.contestants.contestant import Contestant, FoundRows, Limits, SearchData
from bench.search.contestants.registry import ENTRIES, chosen_names
from bench.search.measure import windows_of
from carpool.disk.document_rows import place_count
from carpool.errors import ConfigError
from searcher.shard.gpu import GpuShard

UNLIMITED = Limits(memory_bytes=None, threads=1, window=7)
SEARCHES_ALL_ROWS = "faiss-hnsw"
"""Does not use the probes, so the best of all rows are what it should find."""
HAS_LANCE = importlib.util.find_spec("lance") is not None


def search_all(contestant: Contestant, data: SearchData, window: int) -> list[list[int]]:
    found: dict[int, FoundRows] = {}
    for asked in windows_of(data, window):
        for result in contestant.search(asked):
            assert result.number not in found
            found[result.number] = result
    return [found[number].rows.tolist() for number in range(len(data.queries))]


def expected(data: SearchData, *, of_all: bool = False) -> list[list[int]]:
    """The best rows of the probed clusters, or of all, one query after the other."""
    index = open_clusters(data.index_dir)
    places = place_count(index.layout, index.extents)
    vectors = np.zeros((places, data.queries.shape[1]), np.float32)
    cluster_of = np.full(places, -1)
    for cluster in read_clusters(index):
        vectors[cluster.rows], cluster_of[cluster.rows] = cluster.vectors, cluster.cluster
    best = []
    for query, probes in zip(data.queries, data.probes, strict=True):
        wanted = cluster_of >= 0 if of_all else np.isin(cluster_of, probes)
        scores = np.where(wanted, vectors @ query, -np.inf)
        best.append(np.argsort(-scores, kind="stable")[: data.top_k].tolist())
    return best


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.gpu if entry.needs == "a GPU" else ())
        for name, entry in ENTRIES.items()
    ],
)
def test_it_finds_what_scoring_every_probed_row_finds(name: str, data: SearchData) -> None:
    entry = ENTRIES[name]
    if name == "lancedb" and not HAS_LANCE:
        pytest.skip("LanceDB is not installed (pip install 'carpool[bench]')")
    if entry.prepare is not None:
        folder = data.prepared_dir / name
        if not folder.exists():
            folder.mkdir()
            entry.prepare(data, folder)
    contestant = entry.make()
    contestant.open(data, UNLIMITED)
    try:
        found = [search_all(contestant, data, 7) for _ in range(2)]
        bytes_read = contestant.bytes_read()
    finally:
        contestant.close()
    assert found[0] == found[1]
    best = expected(data, of_all=name == SEARCHES_ALL_ROWS)
    if entry.is_exact:
        assert found[0] == best
    else:  # codes, with or without rows that are re-ranked, or a graph
        shared = [len(set(one) & set(other)) for one, other in zip(found[0], best, strict=True)]
        assert np.mean(shared) > 0.97 * data.top_k
    if name == "carpool-exact":  # everything fits, so it is read once
        assert bytes_read == clusters_bytes(open_clusters(data.index_dir))


def test_lancedb_finds_rows_in_every_fragment_of_a_table(
    data: SearchData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not HAS_LANCE:
        pytest.skip("LanceDB is not installed (pip install 'carpool[bench]')")
    lance = importlib.import_module("lance")
    in_parts = partial(lance.write_dataset, max_rows_per_file=150, max_rows_per_group=50)
    monkeypatch.setattr(lance, "write_dataset", in_parts)
    entry = ENTRIES["lancedb"]
    assert entry.prepare is not None
    folder = tmp_path / entry.name
    folder.mkdir()
    entry.prepare(data, folder)
    (table,) = folder.glob("*.lance")
    assert len(lance.dataset(str(table)).get_fragments()) > 1
    contestant = entry.make()
    contestant.open(SearchData(**{**vars(data), "prepared_dir": tmp_path}), UNLIMITED)
    try:
        assert search_all(contestant, data, 7) == expected(data)
    finally:
        contestant.close()


def test_a_hot_shard_holds_what_earlier_questions_probe(
    data: SearchData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GpuShard.__init__.__kwdefaults__, "device", "cpu")
    contestant = Carpool("default", 0.5)
    contestant.open(data, UNLIMITED)

    def metric(name: str, **labels: str) -> float:
        return contestant.metrics.registry.get_sample_value(f"carpool_shard_{name}", labels) or 0

    try:
        assert metric("bytes") > 0
        found = search_all(contestant, data, 7)
    finally:
        contestant.close()
    best = expected(data)
    shared = [len(set(one) & set(other)) for one, other in zip(found, best, strict=True)]
    assert np.mean(shared) > 0.97 * data.top_k
    assert metric("probes_total", side="shard") > 0
    assert metric("probes_total", side="codes") > 0


def test_the_budget_is_what_the_process_leaves() -> None:
    assert budget_for(Limits(memory_bytes=None, threads=1, window=1), 1000) == 2000 + (64 << 20)
    limit = memory_of(os.getpid()).resident_bytes + GROWTH_BYTES + (1 << 30)
    budget = budget_for(Limits(memory_bytes=limit, threads=1, window=1), 1 << 40)
    assert 0 < budget < 1 << 31
    with pytest.raises(MemoryError, match="hold no cluster"):
        budget_for(Limits(memory_bytes=1 << 20, threads=1, window=1), 1000)


def test_contestants_are_chosen_by_name() -> None:
    everybody = tuple(name for name, entry in ENTRIES.items() if not entry.needs)
    assert chosen_names(None) == everybody
    assert chosen_names("lancedb, carpool*") == (
        "lancedb",
        "carpool",
        "carpool-margin",
        "carpool-exact",
    )
    with pytest.raises(ConfigError, match="no contestant 'carpol'"):
        chosen_names("carpol")
