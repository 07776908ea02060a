"""`carpool bench paper cagr`: figures from a tiny index, and the algorithms against simple ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.data.evaluation import find_data
from bench.papers.cagr import figures
from bench.papers.cagr.figures import RUNS, Run
from bench.papers.cagr.method import Batch, ClusterByCluster, Method
from bench.papers.cagr.overlap import greedy_groups, overlap_of
from bench.papers.cagr.published import Prefetch, PublishedSearch
from bench.papers.cagr.reader import ClusterReader
from bench.papers.cagr.run import batches, load_questions
from carpool.disk.centroids import probe
from carpool.disk.index import OpenIndex
from carpool.errors import ConfigError, CorruptionError

TOP_K = 5


def batch_of(index: OpenIndex, queries: int, nprobe: int, seed: int = 0) -> Batch:
    vectors = np.random.default_rng(seed).standard_normal((queries, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Batch(vectors, probe(index.centroids, vectors, nprobe), TOP_K)


def search(method: Method, *asked: Batch) -> list[list[list[int]]]:
    """Returns the rows of each query of each batch, in the order of the queries."""
    found = []
    for batch in asked:
        rows = {answer.query: answer.rows.tolist() for answer in method.search(batch)}
        found.append([rows[query] for query in range(len(batch.vectors))])
    return found


@pytest.mark.parametrize("figure", [1, 2, 5, 7])
def test_every_figure_prints_the_paper_the_runs_and_an_oracle(
    figure: int,
    index_dir: Path,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = {
        number: tuple(
            Run(run.dataset, run.method, min(run.nprobe, 3), 4, run.theta) for run in runs
        )
        for number, runs in RUNS.items()
    }
    monkeypatch.setattr(figures, "RUNS", small)
    monkeypatch.setattr(figures, "NPROBE", 3)
    report = tmp_path / "figure.json"
    arguments = ["paper", "cagr", str(figure), "--index", str(index_dir), "--data", str(data_dir)]
    arguments += ["--queries", "30", "--warm-up", "0.01", "--json", str(report)]
    done = CliRunner(env={"COLUMNS": "300"}).invoke(app, arguments)
    assert done.exit_code == 0, done.output
    results = msgspec.json.decode(report.read_bytes())["results"]
    assert len(results["runs"]) == len(small.get(figure, ()))
    assert "the paper: " in done.output
    for one in results["runs"]:
        found, is_ours = one["figures"], one["run"]["method"] == "Carpool"
        assert found["batch_ms"]["count"] == 30 and found["bytes_a_query"] > 0
        assert (found["query_ms"] is None) is is_ours
        assert found["oracle_bytes_a_query"] > 0
        assert one["run"]["method"] in ("CaGR", "CaGR best") or not found["prefetched"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("3", "--index", "INDEX"), "Name 1, 2, 4"),
        (("5", "--index", "INDEX"), "name one of nlist 100"),
        (("5", "--index", "INDEX", "--model", "hashing:8"), "another embedding model"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: tuple[str, ...], says: str, index_dir: Path, data_dir: Path
) -> None:
    given = [str(index_dir) if word == "INDEX" else word for word in words]
    done = CliRunner().invoke(app, ["paper", "cagr", *given, "--data", str(data_dir)])
    assert says in done.output + str(done.exception)


@pytest.mark.parametrize("prefetch", ["none", "after", "beside"])
def test_all_methods_find_the_same_rows_in_the_memory_that_they_have(
    prefetch: Prefetch, index: OpenIndex
) -> None:
    asked = [batch_of(index, 40, 3, seed) for seed in range(3)]
    theirs = PublishedSearch(index, entries=4, similarity_min=0.5, prefetch=prefetch)
    ours = ClusterByCluster(index, entries=4)
    alone = PublishedSearch(index, entries=4)
    try:
        expected = search(alone, *asked)
        assert search(theirs, *asked) == search(ours, *asked) == expected
        assert len(theirs.cache.held) == len(alone.cache.held) == 4
        assert ours.bytes_read < alone.bytes_read  # at most once a batch
        assert (theirs.prefetched_bytes > 0) is (prefetch != "none")
        assert theirs.groups < alone.groups == 120
    finally:
        for method in (theirs, ours, alone):
            method.close()


def test_edgerag_reads_what_a_dumb_cache_of_entries_reads(
    index: OpenIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latency x count, the lowest leaves; never more than so many entries of any size (4.1)."""
    sizes = [extent.size_bytes for extent in index.extents]
    latency_us = [50.0 + 37 * cluster % 101 for cluster in range(len(sizes))]
    monkeypatch.setattr(ClusterReader, "latencies_us", lambda _: latency_us)
    asked = batch_of(index, 60, 1)
    counts: Counter[int] = Counter()
    resident: set[int] = set()
    expected = []
    for cluster in asked.probes[:, 0].tolist():
        counts[cluster] += 1
        expected.append((int(cluster in resident), sizes[cluster] * (cluster not in resident)))
        if cluster not in resident and len(resident) == 4:
            resident.remove(
                min(resident, key=lambda other: (latency_us[other] * counts[other], other))
            )
        resident.add(cluster)
    method = PublishedSearch(index, entries=4)
    try:
        found = [(answer.hits, answer.read_bytes) for answer in method.search(asked)]
    finally:
        method.close()
    assert found == expected
    assert 0 < sum(hits for hits, _ in found) < len(found)
    assert method.bytes_read == sum(read for _, read in found)


def test_the_prefetch_between_groups_makes_hits_and_reads_no_less(index: OpenIndex) -> None:
    """ "Prefetching the clusters of following query immediately after the vector search" (3.1)."""
    asked = batch_of(index, 80, 3)
    ahead = PublishedSearch(index, entries=4, similarity_min=0.9, prefetch="after")
    alone = PublishedSearch(index, entries=4, similarity_min=0.9)
    try:
        with_it, without = ([*method.search(asked)] for method in (ahead, alone))
    finally:
        ahead.close()
        alone.close()
    assert ahead.groups == alone.groups > 10
    own_bytes = sum(answer.read_bytes for answer in with_it)
    assert own_bytes < sum(answer.read_bytes for answer in without) / 2
    assert sum(answer.hits for answer in with_it) > sum(answer.hits for answer in without)
    assert own_bytes + ahead.prefetched_bytes == ahead.bytes_read


def test_a_damaged_cluster_ends_the_search(index: OpenIndex, tmp_path: Path) -> None:
    extent = index.extents[3]
    damaged = tmp_path / "damaged.seg"
    content = bytearray(index.segment_paths[extent.segment].read_bytes())
    content[extent.offset_bytes + 5] ^= 1
    damaged.write_bytes(content)
    reader = ClusterReader(index)
    try:
        reader.read(3)
        vars(index)["segment_paths"] = (damaged,)
        broken = ClusterReader(index)
        with pytest.raises(CorruptionError, match="cluster 3"):
            broken.read(3)
        broken.close()
    finally:
        reader.close()


def test_batches_have_20_to_100_queries() -> None:
    """ "Randomly generating between 20 and 100 queries per batch" (section 4.1)."""
    texts = [str(number) for number in range(5_000)]
    cut = list(batches(texts, np.random.default_rng(0)))
    assert [text for batch in cut for text in batch] == texts
    lengths = [len(batch) for batch in cut[:-1]]
    assert 20 <= min(lengths) < 30 and 90 < max(lengths) <= 100


def test_what_is_measured_was_not_asked_in_the_warm_up(data_dir: Path) -> None:
    measured, warm_up = load_questions(find_data(data_dir), "fever", 1_000)
    assert len(measured) == 112 and len(warm_up) == 38
    assert not set(measured) & set(warm_up)
    with pytest.raises(ConfigError, match="there is no folder"):
        find_data(Path("nowhere"))


def test_a_query_joins_the_first_group_with_a_member_that_is_similar_enough() -> None:
    # 0 and 1 share half, 1 and 2 share half, 0 and 2 a fifth: a chain.
    probes = np.array([[0, 1, 2], [5, 6, 7], [1, 2, 3], [2, 3, 4]], np.int32)
    assert greedy_groups(probes, 0.5) == [[0, 2, 3], [1]]
    assert greedy_groups(probes, 0.51) == [[0], [1], [2], [3]]
    assert greedy_groups(probes, None) == [[0], [1], [2], [3]]


def test_the_overlap_of_two_questions_is_that_of_their_sets() -> None:
    probes = np.random.default_rng(0).permuted(
        np.tile(np.arange(30, dtype=np.int32), (200, 1)), axis=1
    )[:, :10]
    overlap = overlap_of("nq", probes, 0.5)
    sets = [set(row) for row in probes.tolist()]
    best = [
        max(len(a & b) / len(a | b) for b in part if b is not a)
        for part in (sets[:100], sets[100:])
        for a in part
    ]
    assert overlap.best == pytest.approx(np.mean(best))
    assert overlap.over_60 == pytest.approx(np.mean(np.array(best) > 0.6))
    assert overlap.distinct == 30
