"""The lone query's benchmark on a small index: it compares what it says it compares, and sees a
search that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import faiss
import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from bench import lone_query
from bench.lone_query import (
    FAISS,
    SCORING,
    LoneIndex,
    LoneOptions,
    Search,
    Verdicts,
    lines,
    measure,
    run,
)

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
SMALL = LoneOptions(
    rows=3_000, dimension=32, nlist=12, nprobe=4, queries=12, warm_up=2, rests_ms=(0, 1), top_k=5
)


@pytest.fixture(scope="module")
def index() -> Iterator[LoneIndex]:
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(
        1
    )  # two would wait for each other where the tests' workers have all cores
    yield LoneIndex(SMALL)
    faiss.omp_set_num_threads(threads)


def test_a_run_times_every_query_after_each_rest_and_finds_what_faiss_finds() -> None:
    threads = faiss.omp_get_max_threads()
    report = run(SMALL)
    assert faiss.omp_get_max_threads() == threads
    assert [at_rest.rest_ms for at_rest in report.at_rest] == [0, 1]
    for at_rest in report.at_rest:
        assert at_rest.times.keys() == {SCORING, FAISS}
        assert {times.count for times in at_rest.times.values()} == {12}
        verdicts = at_rest.verdicts[SCORING]
        assert (verdicts.same + verdicts.tied, verdicts.different) == (14, 0)
        assert at_rest.over_p50 == at_rest.times[SCORING].p50 - at_rest.times[FAISS].p50
        assert at_rest.over_p99 == at_rest.times[SCORING].p99 - at_rest.times[FAISS].p99
    assert report.over_ms_max == max(max(each.over_p50, each.over_p99) for each in report.at_rest)
    assert (report.different, report.faiss_one_thread.count) == (0, 12)
    assert "3,000 x 32 made-up vectors, 12 clusters, nprobe 4, top 5" in next(lines(report))
    assert json.loads(msgspec.json.encode(report))["options"]["rows"] == 3_000


def test_the_index_holds_every_row_once_in_clusters_of_uneven_sizes_and_both_copies_agree(
    index: LoneIndex,
) -> None:
    counts = [cluster.row_count for cluster in index.clusters]
    assert sum(counts) == 3_000
    assert max(counts) > 2 * min(counts)
    scores, rows = index.faiss_search(index.queries[0], index.probes[0], 5)
    np.testing.assert_allclose(index.true_scores(index.queries[0], rows), scores, atol=1e-6, rtol=0)
    assert index.rows_scanned()[0] == sum(counts[cluster] for cluster in index.probes[0])


def test_the_same_seed_makes_the_same_index_and_another_seed_another(index: LoneIndex) -> None:
    again, other = LoneIndex(SMALL), LoneIndex(msgspec.structs.replace(SMALL, seed=1))
    assert np.array_equal(again.queries, index.queries)
    assert np.array_equal(again.clusters[3].pieces[0], index.clusters[3].pieces[0])
    assert not np.array_equal(other.queries, index.queries)


def plugged(index: LoneIndex, change: Search) -> tuple[int, int, int]:
    """What becomes of a search beside one that is right."""
    timed = measure({"plugged": change, "right": index.faiss_search}, index, SMALL, 0)
    assert timed.verdicts["right"] == Verdicts(same=14, tied=0, different=0)
    verdicts = timed.verdicts["plugged"]
    return verdicts.same, verdicts.tied, verdicts.different


def test_a_search_that_is_plugged_in_is_judged_on_what_it_returns(index: LoneIndex) -> None:
    def one_wrong(vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
        assert clusters.shape == (4,)
        scores, rows = index.faiss_search(vector, clusters, top_k + 1)
        return np.delete(scores, -2), np.delete(rows, -2)

    def one_short(vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
        return index.faiss_search(vector, clusters, top_k - 1)

    def repeated(vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
        scores, rows = index.faiss_search(vector, clusters, 1)
        return np.repeat(scores, top_k), np.repeat(rows, top_k)

    def too_few_clusters(vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
        return index.faiss_search(vector, clusters[-1:], top_k)

    assert plugged(index, index.faiss_search) == (14, 0, 0)
    for wrong in (one_wrong, one_short, repeated, too_few_clusters):
        assert plugged(index, wrong) == (0, 0, 14), wrong


def test_rows_whose_scores_are_within_the_tolerance_may_change_places(
    index: LoneIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
        scores, rows = index.faiss_search(vector, clusters, top_k)
        return scores[::-1], rows[::-1]

    assert plugged(index, swapped) == (0, 0, 14)
    monkeypatch.setattr(lone_query, "TOLERANCE", 1.0)
    assert plugged(index, swapped) == (0, 14, 0)
