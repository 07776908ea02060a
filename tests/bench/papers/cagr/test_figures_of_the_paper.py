"""`carpool bench figure`: every figure from a tiny index, and runs against simple counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.core.progress import silent
from bench.data.evaluation import find_data
from bench.papers.cagr import engine
from bench.papers.cagr.command import FigureOptions, figure, find_run
from bench.papers.cagr.outcome import FigureRun
from bench.papers.cagr.overlap import overlap_of
from bench.papers.cagr.plan import NUMBERS, FigureLoad, PaperSettings, RunSpec, runs_of
from bench.papers.cagr.questions import FigureQuestions, batches, load_questions
from bench.papers.cagr.run import make_run
from carpool.disk.centroids import probe
from carpool.disk.index import open_index
from carpool.embedding import EmbeddingSettings, load_embedder
from carpool.errors import ConfigError
from searcher.plan.slices import SliceId
from tests.bench.papers.cagr.conftest import MODEL, SMALL

LOAD = FigureLoad(queries=30, warm_up_s=0.05, seed=0)
PNG = b"\x89PNG"


def options(number: int, index_dir: Path, out: Path) -> FigureOptions:
    return FigureOptions(
        figure=number, index=index_dir, model=MODEL, out=out, load=LOAD, paper=SMALL
    )


def run(index_dir: Path, spec: RunSpec, texts: list[str], warm_up: list[str]) -> FigureRun:
    index = open_index(index_dir)
    try:
        embedder = load_embedder(EmbeddingSettings(model=MODEL))
        questions = FigureQuestions(tuple(texts), tuple(warm_up))
        return make_run(spec, index, embedder, questions, silent)
    finally:
        index.close()


def spec(**changes: object) -> RunSpec:
    (found,) = (
        one for one in runs_of(5, LOAD, SMALL) if one.method == changes.get("method", "edgerag")
    )
    return msgspec.structs.replace(found, **changes)


@pytest.mark.parametrize("number", NUMBERS)
def test_every_figure_leaves_a_picture_and_a_report(
    number: int, index_dir: Path, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.getbasetemp() / "shared-runs"  # figures share runs
    asked = options(number, index_dir, out)
    if number == 1:
        load = FigureLoad(queries=100, warm_up_s=0)
        asked = msgspec.structs.replace(asked, load=load)
    assert figure(data_dir, asked)
    report = msgspec.json.decode((out / f"figure-{number}.json").read_bytes())
    assert len(report["results"]["runs"]) == len(runs_of(number, asked.load, SMALL))
    assert report["machine"]["cores"] >= 1
    assert report["index"]["nlist"] == 8
    assert report["results"]["stated"]
    assert (out / f"figure-{number}.png").read_bytes().startswith(PNG)


def test_a_run_that_is_there_is_not_made_again_unless_a_setting_changed(
    index_dir: Path, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.papers.cagr.command.draw", lambda results, path: None)
    figure(data_dir, options(5, index_dir, tmp_path))
    specs = runs_of(5, LOAD, SMALL)
    for path in (tmp_path / "runs").iterdir():
        kept = msgspec.json.decode(path.read_bytes(), type=FigureRun)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(kept, started="earlier")))
    figure(data_dir, options(5, index_dir, tmp_path))
    report = msgspec.json.decode((tmp_path / "figure-5.json").read_bytes())
    assert [each["started"] for each in report["results"]["runs"]] == ["earlier"] * len(specs)
    version = report["index"]["index_version"]
    assert find_run(tmp_path, specs[0], version) is not None
    assert find_run(tmp_path, specs[0], "another index") is None
    assert find_run(tmp_path, msgspec.structs.replace(specs[0], queries=31), version) is None


def test_edgerag_reads_what_a_dumb_cache_of_entries_reads(
    index_dir: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latency x count, the lowest of the resident goes; never more than so many entries, whatever
    their size (4.1).
    """
    index = open_index(index_dir)
    index.close()
    sizes = [extent.size_bytes for extent in index.extents]
    latency_us = {SliceId(cluster): 50 + 37 * cluster % 101 for cluster in range(len(sizes))}
    monkeypatch.setattr(engine, "read_latencies_us", lambda index, clock: latency_us)
    texts = list(load_questions(find_data(data_dir), "nq", 60).measured)
    found = run(index_dir, spec(dataset="nq", warm_up_s=0.0, entries=4, nprobe=1), texts, texts[:1])
    probes = probe(index.centroids, load_embedder(EmbeddingSettings(model=MODEL)).encode(texts), 1)[
        :, 0
    ].tolist()
    counts: Counter[int] = Counter()
    resident: set[int] = set()
    hits, read = [], []
    for cluster in probes:
        counts[cluster] += 1
        hits.append(int(cluster in resident))
        read.append(0 if cluster in resident else sizes[cluster])
        if cluster not in resident and len(resident) == 4:
            resident.remove(
                min(resident, key=lambda other: (latency_us[SliceId(other)] * counts[other], other))
            )
        resident.add(cluster)
    assert list(found.series.hits) == hits and 0 < sum(hits) < len(hits)
    assert list(found.series.read_bytes) == read
    assert found.totals.bytes_read == sum(read)
    assert found.totals.used_bytes_max <= sum(sorted(sizes)[-4:]) + 8 * 4096


def test_the_prefetch_between_groups_is_on_no_querys_clock_but_on_the_batchs(
    index_dir: Path, data_dir: Path
) -> None:
    """ "Prefetching the clusters of following query immediately after the vector search" (section
    3.1).
    """
    questions = load_questions(find_data(data_dir), "hotpotqa", 80)
    one_batch = {"similarity_min": 0.9, "batch_min": 80, "batch_max": 80, "warm_up_s": 0.0}
    ahead = run(index_dir, spec(method="cagr-qgp", **one_batch), *map(list, questions))
    alone = run(
        index_dir, msgspec.structs.replace(ahead.spec, method="cagr-qg"), *map(list, questions)
    )
    assert (
        ahead.series.group == alone.series.group
        and ahead.totals.groups == len(set(ahead.series.group)) > 10
    )
    assert alone.totals.prefetched_bytes == 0 < ahead.totals.prefetched_bytes
    # What was prefetched, the queries do not read themselves; nothing is pinned, so that now and
    # then one still must.
    assert sum(ahead.series.read_bytes) < sum(alone.series.read_bytes) / 2
    assert ahead.hit_share > alone.hit_share
    assert sum(ahead.series.read_bytes) + ahead.totals.prefetched_bytes == ahead.totals.bytes_read
    assert ahead.totals.prefetch_us > 0 and max(ahead.series.batch_us) > ahead.totals.prefetch_us


def test_without_prefetch_nothing_is_read_ahead_and_ours_reads_a_cluster_at_most_once_a_batch(
    index_dir: Path, data_dir: Path
) -> None:
    questions = load_questions(find_data(data_dir), "fever", 60)
    groups = run(index_dir, spec(method="cagr-qgp"), *map(list, questions))
    ours = run(index_dir, spec(method="carpool"), *map(list, questions))
    ungrouped = run(index_dir, spec(method="edgerag"), *map(list, questions))
    assert ungrouped.totals.prefetched_bytes == 0 < groups.totals.prefetched_bytes
    index = open_index(index_dir)
    index.close()
    all_bytes = sum(extent.size_bytes for extent in index.extents)
    assert ours.totals.bytes_read <= len(ours.batch_sizes) * all_bytes
    assert sum(ours.series.read_bytes) == ours.totals.bytes_read
    assert ours.query_ms is None and groups.query_ms is not None
    for found in (groups, ours, ungrouped):
        assert sum(found.batch_sizes) == found.queries == 60
        assert all(took >= 0 for took in found.series.load_us)


def test_batches_have_20_to_100_queries() -> None:
    """ "Randomly generating between 20 and 100 queries per batch" (section 4.1)."""
    texts = [str(number) for number in range(5_000)]
    sizes = {"batch_min": 20, "batch_max": 100}
    cut = list(batches(texts, **sizes, rng=np.random.default_rng(0)))
    assert [text for batch in cut for text in batch] == texts
    lengths = [len(batch) for batch in cut[:-1]]
    assert (
        min(lengths) < 30 and max(lengths) > 90 and all(20 <= length <= 100 for length in lengths)
    )


def test_what_is_measured_was_not_asked_in_the_warm_up(data_dir: Path) -> None:
    questions = load_questions(find_data(data_dir), "fever", 1_000)
    assert len(questions.measured) == 112 and len(questions.warm_up) == 38
    assert not set(questions.measured) & set(questions.warm_up)


def test_the_overlap_of_two_questions_is_that_of_their_sets() -> None:
    probes = np.random.default_rng(0).permuted(
        np.tile(np.arange(30, dtype=np.int32), (200, 1)), axis=1
    )[:, :10]
    overlap = overlap_of("nq", probes, PaperSettings())
    sets = [set(row) for row in probes.tolist()]
    jaccard = [[len(a & b) / len(a | b) for b in sets[:100]] for a in sets[:100]]
    assert np.allclose(overlap.shown, np.array(jaccard)[:20, :20], atol=1e-4)
    best = [
        max(len(a & b) / len(a | b) for b in part if b is not a)
        for part in (sets[:100], sets[100:])
        for a in part
    ]
    assert overlap.best == pytest.approx(np.mean(best)) and overlap.over_60 == pytest.approx(
        np.mean(np.array(best) > 0.6)
    )
    assert overlap.shared[0].distinct == np.mean(
        [len(set.union(*sets[at : at + 20])) for at in range(0, 200, 20)]
    )


@pytest.mark.parametrize(
    ("changes", "data", "says"),
    [
        ({"paper": PaperSettings()}, None, "name one of nlist 100"),
        ({"model": "hashing:8"}, None, "another embedding model"),
        ({}, Path("nowhere"), "there is no folder"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    changes: dict[str, object],
    data: Path | None,
    says: str,
    index_dir: Path,
    data_dir: Path,
    tmp_path: Path,
) -> None:
    asked = msgspec.structs.replace(options(5, index_dir, tmp_path), **changes)
    with pytest.raises(ConfigError, match=says):
        figure(data or data_dir, asked)
