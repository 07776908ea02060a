"""The table of recall: measured with questions that did not choose it, and used by the grouper."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from carpool.disk.index import open_index
from carpool.disk.manifest import read_manifest
from carpool.errors import ConfigError, CorruptionError
from cli.index import app
from grouper.build import index_facts
from indexer.build import BuildRequest, build_index
from indexer.plan.defaults import ceilings, nprobes_for
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings
from indexer.tune import tune_index
from searcher.local import LocalSearcher
from tests.clocks import HandClock
from tests.indexer.helpers import CONFIG, write_corpus

ROWS, DIMENSION, NLIST = 4000, 16, 80


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module", params=[True, False], ids=["codes", "exact"])
def index_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    np.save(folder / "v.npy", unit(np.random.default_rng(1).standard_normal((ROWS, DIMENSION))))
    settings = IndexerSettings(threads=1, code_rows_min=0 if request.param else 1 << 30)
    build_index(
        BuildRequest(
            corpus=write_corpus(folder / "c.jsonl", ROWS),
            index_dir=folder / "index",
            nlist=NLIST,
            vectors=folder / "v.npy",
        ),
        IndexerConfig(embedding=CONFIG.embedding, indexer=settings),
        HandClock(step_us=1_000),
        SilentProgress(),
    )
    return folder / "index"


def questions(count: int, seed: int) -> np.ndarray:
    return unit(np.random.default_rng(seed).standard_normal((count, DIMENSION)))


def test_the_table_promises_what_questions_that_it_never_saw_get(index_dir: Path) -> None:
    table = tune_index(index_dir, questions(600, 2), SilentProgress()).recall
    assert table is not None and read_manifest(index_dir).recall == table
    assert all(abs(row.recall - row.target) < 0.03 for row in table.rows), table
    assert read_manifest(index_dir).nprobe_default == table.row_for(0.95).nprobe
    vectors = np.load(index_dir.parent / "v.npy")
    asked = questions(300, 3)
    row = table.row_for(0.9)
    with LocalSearcher(index_dir, nprobe=row.nprobe) as searcher:
        found = [
            {int(hit.doc_id.partition("-")[2]) for hit in result.hits}
            for result in searcher.search(asked, top_k=10)
        ]
    true = np.argsort(-(asked @ vectors.T), axis=1)[:, :10].tolist()
    share = np.mean([len(set(best) & rows) / 10 for best, rows in zip(true, found, strict=True)])
    assert abs(share - row.recall) < 0.03


def test_a_target_picks_its_row_and_without_a_table_the_default(index_dir: Path) -> None:
    tune_index(index_dir, questions(400, 2), SilentProgress())
    facts = index_facts(read_manifest(index_dir), 0)
    assert facts.recall is not None
    assert facts.nprobe_for(0.9) == facts.recall.row_for(0.9).nprobe
    assert facts.nprobe_for(0.96) == facts.recall.row_for(0.97).nprobe
    assert facts.nprobe_for(1.0) == facts.recall.rows[-1].nprobe
    assert facts.nprobe_for(None) == facts.nprobe_default


def test_questions_of_a_file_are_taken_and_too_few_or_wrong_ones_refused(
    index_dir: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "q.npy", questions(200, 5))
    run = CliRunner().invoke(
        app, ["tune", str(index_dir), "--questions", str(tmp_path / "q.npy"), "--json"]
    )
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["questions"] == 200
    for wrong, says in (
        (questions(50, 1), "at least 100"),
        (np.repeat(questions(1, 1), 500, axis=0), "1 different questions"),
        (questions(200, 1)[:, :8], "dimension 16"),
    ):
        with pytest.raises(ConfigError, match=says):
            tune_index(index_dir, wrong, SilentProgress())


def test_damage_is_an_error_and_the_table_stays(index_dir: Path) -> None:
    before = tune_index(index_dir, questions(200, 2), SilentProgress()).recall
    index = open_index(index_dir)
    index.close()
    path, extent = index.segment_paths[0], index.extents[2]
    content = path.read_bytes()
    path.write_bytes(content[: extent.offset_bytes] + b"x" + content[extent.offset_bytes + 1 :])
    try:
        with pytest.raises(CorruptionError, match="of cluster 2"):
            tune_index(index_dir, questions(200, 3), SilentProgress())
    finally:
        path.write_bytes(content)
    assert read_manifest(index_dir).recall == before


@given(st.lists(st.lists(st.integers(0, 19), min_size=10, max_size=10), min_size=1, max_size=30))
def test_the_least_nprobe_that_reaches_a_target_is_chosen(ranks: list[list[int]]) -> None:
    shares = ceilings(np.array(ranks), 20)
    assert shares[-1] == 1
    for target in (0.5, 0.8, 0.95, 0.99):
        (nprobe,) = nprobes_for((target,), shares, 1.0)
        assert shares[nprobe - 1] >= target or nprobe == 20
        assert nprobe == 1 or shares[nprobe - 2] < target
