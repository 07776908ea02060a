"""Rows that are far from all centroids are in the zero cluster, which every search scans."""

from __future__ import annotations

import numpy as np
import pytest

from carpool.corpus.assign import FAR
from carpool.disk import manifest as manifests
from carpool.disk.manifest import read_manifest
from carpool.errors import ConfigError
from indexer.codes import make_codes
from indexer.progress import SilentProgress
from indexer.stats import index_stats
from indexer.tune import tune_index
from indexer.verify import verify_index
from schemas.query import SearchMode
from searcher.local import LocalSearcher
from searcher.settings import SearcherSettings
from tests.searcher.helpers import (
    SmallIndex,
    exact_top_k,
    make_group,
    normalised,
    running,
    write_index,
)

NLIST, TOP_K = 6, 5
QUERIES = normalised(np.random.default_rng(9).standard_normal((12, 16)))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    random = np.random.default_rng(1)
    centroids = normalised(random.standard_normal((NLIST, 16)))
    near = centroids[random.integers(NLIST, size=400)] + random.normal(0, 0.15, (400, 16))
    vectors = normalised(np.concatenate([near, random.standard_normal((200, 16))]))
    made = write_index(
        tmp_path_factory.mktemp("zero"), vectors, centroids, has_codes=True, has_zero_cluster=True
    )
    distances = ((made.vectors[:, None] - made.centroids) ** 2).sum(axis=2).min(axis=1)
    assert np.array_equal(made.assigned == NLIST, distances > FAR)
    assert 100 < (made.assigned == NLIST).sum() < 500
    return made


def best_of(index: SmallIndex, query: np.ndarray, nprobe: int) -> list[int]:
    return exact_top_k(index, query, [*index.clusters_of(query, nprobe), NLIST], TOP_K)


@pytest.mark.parametrize("mode", ["default", "exact"])
@pytest.mark.parametrize("nprobe", [1, 3, NLIST])
def test_every_search_in_a_process_scans_it(
    index: SmallIndex, mode: SearchMode, nprobe: int
) -> None:
    with LocalSearcher(index.dir, settings=SearcherSettings(direct_io="auto")) as searcher:
        found = searcher.search(QUERIES, top_k=TOP_K, nprobe=nprobe, mode=mode)
        with pytest.raises(ValueError, match=f"from 1 to {NLIST}"):
            searcher.search(QUERIES, nprobe=NLIST + 1)
    for query, result in zip(QUERIES, found, strict=True):
        assert [hit.doc_id for hit in result.hits] == [
            f"d{r}" for r in best_of(index, query, nprobe)
        ]
    assert any(hit.cluster == NLIST for result in found for hit in result.hits)


@pytest.mark.parametrize("mode", ["default", "exact"])
def test_every_search_of_a_group_scans_it_and_says_how_many_clusters_it_probed(
    index: SmallIndex, mode: SearchMode
) -> None:
    with running(index, direct_io="auto", search_mode=mode) as here:
        found = here.search(make_group(index, list(QUERIES), nprobe=2, top_k=TOP_K))
    for number, query in enumerate(QUERIES):
        retrieval = found[f"q0-{number}"]
        rows = best_of(index, query, 2)
        assert [hit.doc_id for hit in retrieval.hits] == [f"d{row}" for row in rows]
        assert retrieval.search is not None and retrieval.search.nprobe == 2
        assert {probe.cluster for probe in retrieval.probes} == {
            *index.clusters_of(query, 2),
            NLIST,
        }


def test_it_is_verified_described_measured_and_coded_as_the_others(index: SmallIndex) -> None:
    report = verify_index(index.dir, SilentProgress())
    assert (report.problems, report.clusters) == ((), NLIST + 1)
    stats = index_stats(index.dir)
    assert stats.nlist == NLIST and stats.cluster_rows.mean == round(600 / (NLIST + 1), 1)
    codes = [path for path in index.dir.iterdir() if path.name.startswith("codes-")]
    before = [path.read_bytes() for path in codes]
    make_codes(index.dir, SilentProgress())
    assert [path.read_bytes() for path in codes] == before
    questions = normalised(np.random.default_rng(3).standard_normal((200, 16)))
    table = tune_index(index.dir, questions, SilentProgress()).recall
    assert table is not None
    far = (index.assigned == NLIST).sum() / 600
    assert table.rows[0].nprobe < NLIST and table.rows[0].recall > far
    assert table.rows[-1].recall > 0.98
    assert verify_index(index.dir, SilentProgress()).problems == ()


def test_a_reader_that_does_not_know_it_refuses_the_index(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_manifest(index.dir).zero_clusters == (NLIST,)
    monkeypatch.setattr(manifests, "FEATURES", ())
    with pytest.raises(ConfigError, match="requires zero_cluster"):
        read_manifest(index.dir)
