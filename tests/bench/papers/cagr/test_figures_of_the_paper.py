"""`carpool bench figure`: every figure from a tiny index, and what its runs say against dumb
counts.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.data.evaluation import find_data
from bench.papers.cagr.command import Wishes, figure, redraw
from bench.papers.cagr.outcome import Run
from bench.papers.cagr.overlap import overlap_of
from bench.papers.cagr.plan import NUMBERS, Load, PaperSettings, RunSpec, runs_of
from bench.papers.cagr.questions import Questions, batches, endless, load_questions
from bench.papers.cagr.report import FigureReport, RunStore, read_report
from bench.papers.cagr.run import make_run
from carpool.disk.centroids import probe
from carpool.disk.index import open_index
from carpool.embedding import EmbeddingSettings, load_embedder
from carpool.errors import ConfigError
from tests.bench.papers.cagr.conftest import MODEL, SMALL

LOAD = Load(queries=30, warm_up_s=0.05, seed=0)
PNG = b"\x89PNG"


def wishes(number: int, index_dir: Path, data_dir: Path, out: Path, **other: object) -> Wishes:
    values: dict[str, object] = {
        "load": LOAD,
        "for_s": None,
        "again": False,
        "paper": SMALL,
        "png": None,
    }
    return Wishes(
        figure=number, index=index_dir, data=data_dir, model=MODEL, out=out, **(values | other)
    )  # type: ignore[arg-type]


def run(index_dir: Path, spec: RunSpec, texts: list[str], warm_up: list[str]) -> Run:
    index = open_index(index_dir)
    try:
        embedder = load_embedder(EmbeddingSettings(model=MODEL))
        return make_run(
            spec, index, embedder, Questions(tuple(texts), tuple(warm_up)), lambda *_: None
        )
    finally:
        index.close()


def spec(**changes: object) -> RunSpec:
    (found,) = (
        one for one in runs_of(5, LOAD, SMALL) if one.method == changes.get("method", "edgerag")
    )
    return msgspec.structs.replace(found, **changes)


@pytest.mark.parametrize("number", NUMBERS)
def test_every_figure_leaves_a_picture_and_a_json_from_which_alone_it_can_be_drawn(
    number: int,
    index_dir: Path,
    data_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.getbasetemp() / "shared-runs"  # figures share runs
    asked = wishes(number, index_dir, data_dir, out)
    if number == 1:
        asked = msgspec.structs.replace(asked, load=Load(queries=100, warm_up_s=0))
    assert figure(asked)
    report = read_report(out / f"figure-{number}.json")
    assert len(report.runs) == len(runs_of(number, asked.load, SMALL))
    assert (out / f"figure-{number}.png").read_bytes().startswith(PNG)
    assert report.machine.cores >= 1 and report.index.nlist == 8 and report.data and report.stated
    if number != 5:
        return  # drawing is slow, and one is enough
    redraw(out / f"figure-{number}.json", tmp_path)
    assert (tmp_path / f"figure-{number}.png").read_bytes() == (
        out / f"figure-{number}.png"
    ).read_bytes()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the picture, where a test is about runs."""
    monkeypatch.setattr("bench.papers.cagr.command.draw", lambda report, path: None)


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_is_there_is_not_made_again_unless_something_it_depends_on_changed(
    index_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    def made() -> list[str]:
        figure(wishes(5, index_dir, data_dir, tmp_path))
        return [found.started for found in read_report(tmp_path / "figure-5.json").runs]

    first = made()
    store = RunStore(tmp_path)
    report = read_report(tmp_path / "figure-5.json")
    for name in (f"runs/{found.spec.name}.json" for found in report.runs):
        kept = msgspec.json.decode((tmp_path / name).read_bytes(), type=Run)
        (tmp_path / name).write_bytes(
            msgspec.json.encode(msgspec.structs.replace(kept, started="earlier"))
        )
    assert made() == ["earlier"] * len(first)
    version = report.index.index_version
    assert store.find(report.runs[0].spec, version) is not None
    assert store.find(report.runs[0].spec, "another index") is None
    assert store.find(msgspec.structs.replace(report.runs[0].spec, queries=31), version) is None
    figure(wishes(5, index_dir, data_dir, tmp_path, again=True))
    assert "earlier" not in [
        found.started for found in read_report(tmp_path / "figure-5.json").runs
    ]


@pytest.mark.usefixtures("undrawn")
def test_a_figure_that_is_out_of_time_goes_on_where_it_was(
    index_dir: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for left in (2, 1):
        assert figure(wishes(5, index_dir, data_dir, tmp_path, for_s=0.0))
        assert f"{left} runs are left" in capsys.readouterr().err
        assert not (tmp_path / "figure-5.json").exists()
    assert figure(wishes(5, index_dir, data_dir, tmp_path, for_s=0.0))
    assert len(read_report(tmp_path / "figure-5.json").runs) == 3


def test_edgerag_reads_what_a_dumb_cache_of_entries_reads(index_dir: Path, data_dir: Path) -> None:
    """Latency x count, the lowest of the resident goes; never more than so many entries, whatever
    their size (4.1).
    """
    texts = list(load_questions(find_data(data_dir), "nq", 60).measured)
    found = run(index_dir, spec(dataset="nq", warm_up_s=0.0, entries=4, nprobe=1), texts, texts[:1])
    index = open_index(index_dir)
    index.close()
    probes = probe(index.centroids, load_embedder(EmbeddingSettings(model=MODEL)).encode(texts), 1)[
        :, 0
    ].tolist()
    latency_us, sizes = (
        index.manifest.read_latency_us,
        [extent.size_bytes for extent in index.extents],
    )
    counts: Counter[int] = Counter()
    held: set[int] = set()
    hits, read = [], []
    for cluster in probes:
        counts[cluster] += 1
        hits.append(int(cluster in held))
        read.append(0 if cluster in held else sizes[cluster])
        if cluster not in held and len(held) == 4:
            held.remove(min(held, key=lambda other: (latency_us[other] * counts[other], other)))
        held.add(cluster)
    assert list(found.series.hits) == hits and 0 < sum(hits) < len(hits)
    assert list(found.series.read_bytes) == read
    assert found.totals.bytes_read == sum(read)
    assert found.totals.held_bytes_max <= sum(sorted(sizes)[-4:]) + 8 * 4096


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
    assert ours.totals.bytes_read <= len(ours.batch_sizes) * sum(
        extent.size_bytes for extent in open_index_once(index_dir)
    )
    assert sum(ours.series.read_bytes) == ours.totals.bytes_read
    assert ours.query_ms is None and groups.query_ms is not None
    for found in (groups, ours, ungrouped):
        assert sum(found.batch_sizes) == found.queries == 60
        assert all(took >= 0 for took in found.series.load_us)


def open_index_once(index_dir: Path) -> tuple:  # type: ignore[type-arg]
    index = open_index(index_dir)
    index.close()
    return index.extents


def test_batches_hold_20_to_100_queries_and_warming_up_never_ends() -> None:
    """ "Randomly generating between 20 and 100 queries per batch" (section 4.1)."""
    texts = [str(number) for number in range(5_000)]
    sizes = {"batch_min": 20, "batch_max": 100}
    cut = list(batches(texts, **sizes, rng=np.random.default_rng(0)))
    assert [text for batch in cut for text in batch] == texts
    lengths = [len(batch) for batch in cut[:-1]]
    assert (
        min(lengths) < 30 and max(lengths) > 90 and all(20 <= length <= 100 for length in lengths)
    )
    again = endless(texts[:7], **sizes, rng=np.random.default_rng(0))
    assert [text for _ in range(3) for text in next(again)][:15] == (texts[:7] * 3)[:15]


def test_what_is_measured_was_not_asked_in_the_warm_up(data_dir: Path) -> None:
    questions = load_questions(find_data(data_dir), "fever", 1_000)
    assert len(questions.measured) == 112 and len(questions.warm_up) == 38
    assert not set(questions.measured) & set(questions.warm_up)


def test_the_defaults_are_the_papers_settings() -> None:
    """Sections 2.4 and 4.1."""
    paper = PaperSettings()
    assert (paper.nprobe, paper.entries, paper.similarity_min, paper.entries_fig2) == (
        10,
        40,
        0.5,
        50,
    )
    assert max(paper.nprobes_fig2) == 40 and (paper.batch_min, paper.batch_max) == (20, 100)
    assert {min(paper.thetas_fig7), max(paper.thetas_fig7)} == {0.1, 0.9}
    shared = set(runs_of(4, Load(), paper)) & set(runs_of(7, Load(), paper))
    assert {found.method for found in shared} == {"cagr-qgp", "carpool"}
    assert (
        set(runs_of(5, Load(), paper))
        < set(runs_of(4, Load(), paper))
        == set(runs_of(6, Load(), paper))
    )


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
    ("changes", "says"),
    [
        ({"paper": PaperSettings()}, "name one of nlist 100"),
        ({"model": "hashing:8"}, "another embedding model"),
        ({"data": Path("nowhere")}, "there is no folder"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_measured(
    changes: dict[str, object], says: str, index_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        figure(msgspec.structs.replace(wishes(5, index_dir, data_dir, tmp_path), **changes))


def test_an_index_without_a_profile_is_refused_by_edgerag(
    index_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    index = open_index(index_dir)
    index.close()
    bare = msgspec.structs.replace(index.manifest, read_latency_us=())
    import dataclasses

    from bench.papers.cagr.rig import open_rig
    from carpool.clock import SystemClock

    with pytest.raises(ConfigError, match="carpool index profile"):
        open_rig(spec(), dataclasses.replace(index, manifest=bare), SystemClock())


def test_a_json_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"figure": 5}))
    with pytest.raises(ConfigError, match="holds no figure"):
        redraw(tmp_path / "other.json", None)
    with pytest.raises(ConfigError, match="holds no figure"):
        redraw(tmp_path / "nothing.json", None)
    assert "schema_version" in FigureReport.__struct_fields__
