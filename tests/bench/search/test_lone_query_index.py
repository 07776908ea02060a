"""A lone query on an index of files: the executor answers from memory alone, and as FAISS does."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from bench.data import read_vectors
from bench.lone_query import CARPOOL, FAISS, LoneOptions
from bench.lone_query_index import Asking, IndexData, run_on_index
from bench.search.dataset import open_view
from carpool.clock import SystemClock
from carpool.disk.index import open_index
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from searcher.build import open_search_plane
from searcher.events import NoEvents
from searcher.settings import SearcherSettings

SMALL = LoneOptions(nprobe=3, queries=20, warm_up=2, rests_ms=(0,), top_k=5, threads=1)


def test_the_executor_finds_what_faiss_finds_without_reading(
    tiny_index: Path, questions: Path
) -> None:
    report = run_on_index(tiny_index, questions, SMALL)
    (at_rest,) = report.at_rest
    assert at_rest.times.keys() == {CARPOOL, FAISS}
    assert at_rest.times[CARPOOL].count == at_rest.times[FAISS].count == 20
    verdicts = at_rest.verdicts[CARPOOL]
    assert (verdicts.same + verdicts.tied, verdicts.different) == (22, 0)
    assert (report.options.rows, report.options.nlist, report.options.dimension) == (400, 8, 16)
    assert report.what.startswith("400 x 16 vectors of index")


def test_faiss_holds_the_vectors_of_the_index(tiny_index: Path, questions: Path) -> None:
    view = open_view(tiny_index)
    data = IndexData(view, questions, SMALL)
    vectors = np.concatenate([cluster.vectors for cluster in view.clusters()])
    rows = np.concatenate([cluster.rows for cluster in view.clusters()])
    query = data.queries[0]
    np.testing.assert_allclose(data.true_scores(query, rows), vectors @ query, atol=1e-6, rtol=0)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        _, found = data.faiss_search(query, np.arange(view.nlist), 5)
    finally:
        faiss.omp_set_num_threads(threads)
    assert found.tolist() == rows[np.argsort(-(vectors @ query))[:5]].tolist()
    assert data.rows_scanned()[0] == sum(
        view.extents[cluster].row_count for cluster in data.probes[0]
    )


def test_a_query_that_has_to_read_is_an_error(tiny_index: Path, questions: Path) -> None:
    index = open_index(tiny_index)
    index.close()
    plane = open_search_plane(
        index, SearcherSettings(scoring_threads=1), Metrics(), SystemClock(), events=NoEvents()
    )
    query = read_vectors(questions)[0]
    try:
        with Asking(plane) as asking:
            with pytest.raises(
                RuntimeError, match="bytes were read for a query whose clusters were in memory"
            ):
                asking(query, np.arange(3), 5)
            assert len(asking(query, np.arange(3), 5)[1]) == 5
    finally:
        plane.close()


def test_too_few_questions_are_refused(tiny_index: Path, questions: Path) -> None:
    with pytest.raises(ConfigError, match="distinct questions"):
        run_on_index(tiny_index, questions, LoneOptions(nprobe=3, queries=1_000))
