"""Whole runs of `carpool bench search` on a tiny index, in real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.search.child import ChildRequest
from bench.search.contestants.contestant import Limits, SearchData
from bench.search.processes import run_child
from bench.search.questions import choose_questions, read_question_vectors
from bench.search.run import SearchRun, run
from carpool.errors import ConfigError
from tests.bench.search.conftest import make_options, unit_rows
from tests.waiting import WAIT_S, wait_until

THREE = ("carpool", "faiss-memory", "carpool-exact")


def test_contestants_are_measured_and_judged_and_the_report_says_so(
    tmp_path: Path, tiny_index: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "search.json"
    options = make_options(
        tmp_path,
        tiny_index,
        contestants=",".join(THREE),
        questions=[questions],
        json_file=path,
    )
    assert run(options)
    report = json.loads(path.read_text())
    assert report["benchmark"] == "search"
    assert all(report["promises"].values())
    results = report["results"]
    assert results["indexes"][0]["row_count"] == 400
    rows = {row["contestant"]: row for row in results["rows"]}
    assert tuple(rows) == THREE
    for row in rows.values():
        assert row["figures"]["queries_per_s"]["median"] > 0
        assert row["figures"]["recall_at_probes"]["median"] >= 0.97
        assert 0.3 < row["figures"]["recall"]["median"] < 1
    assert rows["carpool-exact"]["figures"]["recall_at_probes"]["median"] == 1
    assert rows["carpool"]["rate_ratio"]["median"] == 1
    assert "no process was limited" in capsys.readouterr().out


def test_too_little_memory_in_a_cgroup_is_a_result(
    tmp_path: Path, tiny_index: Path, questions: Path, cgroups: Any
) -> None:
    share = (8 << 20) / (400 * 16 * 4)  # less than NumPy and FAISS take
    options = make_options(
        tmp_path,
        tiny_index,
        memory_held_by=cgroups,
        contestants="faiss-memory,faiss-rabitq",
        memory=share,
        questions=[questions],
    )
    search = SearchRun(options)
    search.run()
    cells = {cell.contestant: cell for cell in search.done}
    assert cells["faiss-memory"].status == "ok"
    peak_bytes = cells["faiss-memory"].peak_bytes
    assert peak_bytes is not None and peak_bytes > 1 << 20
    assert cells["faiss-rabitq"].status == "out of memory"
    assert "killed it at its limit" in cells["faiss-rabitq"].error


def test_carpool_without_room_for_a_cluster_is_out_of_memory(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    options = make_options(
        tmp_path, tiny_index, contestants="carpool", memory=0.4, questions=[questions]
    )
    search = SearchRun(options)
    search.run()
    (cell,) = search.done
    assert (cell.status, cell.is_bug) == ("out of memory", False)
    assert "raise --memory" in cell.error


def test_a_process_that_takes_too_long_or_fails_is_a_result(
    data: SearchData, tmp_path: Path
) -> None:
    request = ChildRequest(
        contestant="faiss-memory",
        limits=Limits(memory_bytes=None, threads=1, window=5),
        index_dir=str(data.index_dir),
        prepared_dir=str(tmp_path),
        folder=str(tmp_path),
        top_k=5,
    )
    assert run_child(request, tmp_path / "slow", timeout_s=0.0).status == "timed out"
    failed = run_child(request, tmp_path / "failed", timeout_s=WAIT_S)
    assert failed.status == "failed"  # there are no queries in that folder
    assert "queries.npy" in failed.outcome.error
    assert failed.outcome.is_bug


@pytest.mark.slow
def test_the_end_of_the_bench_ends_the_contestant(tmp_path: Path, tiny_index: Path) -> None:
    np.save(tmp_path / "many.npy", unit_rows(np.random.default_rng(5), 100_000))
    arguments = {
        "--index": tiny_index,
        "--questions": tmp_path / "many.npy",
        "--work": tmp_path / "work",
        "--contestants": "carpool-exact",
        "--windows": 1,
        "--queries": 100_000,
        "--nprobe": 3,
        "--seeds": 1,
        "--memory-held-by": "none",
    }
    words = ["search", *(str(word) for pair in arguments.items() for word in pair)]
    program = f"from bench.cli import app; app({words!r})"
    bench = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until((tmp_path / "work" / "cells" / "0-1-carpool-exact" / "request.json").exists)
        children = wait_until(lambda: _children(bench.pid))
        bench.send_signal(signal.SIGKILL)
        bench.wait(WAIT_S)
        wait_until(lambda: not any(Path("/proc", pid).exists() for pid in children))
    finally:
        bench.kill()
        bench.wait()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_questions_that_chose_the_spread_of_a_grown_set_are_never_asked(tmp_path: Path) -> None:
    """A third of those of a set; all of a file that no set lists."""
    for name in ("queries.npy", "others.npy"):
        np.save(tmp_path / name, unit_rows(np.random.default_rng(1), 90))
    (tmp_path / "grown.json").write_text('{"files": {"queries.npy": "00"}, "seed": 0}')
    assert len(read_question_vectors(tmp_path / "queries.npy")) == 60
    assert len(read_question_vectors(tmp_path / "others.npy")) == 90
    (tmp_path / "grown.json").write_text('{"files": {}')
    with pytest.raises(ConfigError, match=r"cannot read .*grown\.json .* grow the set again"):
        read_question_vectors(tmp_path / "others.npy")


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
        SearchRun(make_options(tmp_path, tiny_index, nprobe=9, **asked))
    with pytest.raises(ConfigError, match="2 indexes, 1 files of questions and 3 seeds"):
        SearchRun(make_options(tmp_path, tiny_index, tiny_index, seeds=3, **asked))
    with pytest.raises(ConfigError, match="give --index once"):
        SearchRun(make_options(tmp_path, **asked))
    with pytest.raises(ConfigError, match="there are no questions at nowhere"):
        SearchRun(make_options(tmp_path, tiny_index, questions=[Path("nowhere")]))
