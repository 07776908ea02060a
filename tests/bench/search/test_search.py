"""Whole runs of `carpool bench search` on a tiny index, in real processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.search import run as search
from bench.search.child import ChildRequest
from bench.search.contestants.contestant import SearchData
from bench.search.options import SearchOptions
from bench.search.processes import run_child
from bench.search.questions import choose_questions, read_question_vectors
from bench.search.report import Cell
from bench.search.run import run, run_cells, seeds_of
from carpool.errors import ConfigError
from tests.bench.search.conftest import make_options
from tests.waiting import WAIT_S

TWO = ("carpool", "faiss-memory")


def test_contestants_are_measured_and_judged_and_the_report_says_so(
    tmp_path: Path, tiny_index: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "search.json"
    options = make_options(
        tmp_path,
        tiny_index,
        contestants=",".join(TWO),
        questions=[questions],
        json_file=path,
    )
    assert run(options)
    report = json.loads(path.read_text())
    assert report["benchmark"] == "search"
    assert all(report["promises"].values())
    results = report["results"]
    assert results["indexes"][0]["row_count"] == 400
    rows = results["rows"]["windows of 10"]
    assert set(rows) == set(TWO)
    for row in rows.values():
        assert row["queries_per_s"]["median"] > 0
        assert row["recall_at_probes"] >= 0.97
        assert 0.3 < row["recall"] < 1
    assert rows["faiss-memory"]["recall_at_probes"] == 1
    assert "no process was limited" in capsys.readouterr().out


def cells_of(options: SearchOptions) -> dict[str, Cell]:
    done = run_cells(options, seeds_of(options), lambda _: None, WAIT_S)
    return {cell.contestant: cell for cell in done}


@pytest.mark.usefixtures("cgroups")
def test_too_little_memory_in_a_cgroup_is_a_result(
    tmp_path: Path, tiny_index: Path, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "drop_page_cache", lambda: None)  # other tests run
    share = (8 << 20) / (400 * 16 * 4)  # less than NumPy and FAISS take
    options = make_options(
        tmp_path,
        tiny_index,
        memory_held_by="cgroup",
        contestants="faiss-memory,faiss-rabitq",
        memory=share,
        questions=[questions],
    )
    cells = cells_of(options)
    assert cells["faiss-memory"].status == "ok"
    peak_bytes = cells["faiss-memory"].peak_bytes
    assert peak_bytes is not None and peak_bytes > 1 << 20
    assert cells["faiss-rabitq"].status == "out of memory"
    assert "killed it at its limit" in cells["faiss-rabitq"].error


def test_a_process_that_takes_too_long_or_fails_is_a_result(
    data: SearchData, tmp_path: Path
) -> None:
    request = ChildRequest(
        contestant="faiss-memory",
        window=5,
        memory_bytes=None,
        index_dir=str(data.index_dir),
        prepared_dir=str(tmp_path),
        arrays=str(tmp_path),
    )
    slow = run_child(request, tmp_path / "slow", is_held=False, timeout_s=0.0)
    assert slow.status == "timed out"
    failed = run_child(request, tmp_path / "failed", is_held=False, timeout_s=WAIT_S)
    assert failed.status == "failed"  # there are no queries in that folder
    assert "queries.npy" in failed.error


def test_questions_are_distinct_and_in_an_order_of_the_seed(questions: Path) -> None:
    asked = np.concatenate([read_question_vectors(questions)] * 2)
    (one, left), (same, _), (other, _) = (
        choose_questions(asked, 16, 100, seed) for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert not (one == other).all()
    assert len(np.unique(one, axis=0)) == 100
    assert len(np.unique(np.concatenate([one, left]), axis=0)) == 120
    with pytest.raises(ConfigError, match="there are 120 distinct questions"):
        choose_questions(asked, 16, 121, 0)
    with pytest.raises(ConfigError, match="of dimension 8"):
        choose_questions(asked, 8, 10, 0)


def test_options_that_cannot_run_are_refused(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    asked = {"questions": [questions]}
    with pytest.raises(ConfigError, match="--nprobe 9 is more than the 8 clusters"):
        seeds_of(make_options(tmp_path, tiny_index, nprobe=9, **asked))
    with pytest.raises(ConfigError, match="2 indexes, 1 files of questions and 3 seeds"):
        seeds_of(make_options(tmp_path, tiny_index, tiny_index, seeds=3, **asked))
    with pytest.raises(ConfigError, match="give --index once"):
        seeds_of(make_options(tmp_path, **asked))
    with pytest.raises(ConfigError, match="there are no questions at nowhere"):
        seeds_of(make_options(tmp_path, tiny_index, questions=[Path("nowhere")]))
