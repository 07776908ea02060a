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
from typer.testing import CliRunner

from bench.baselines.contestant import Limits, SearchData
from bench.baselines.registry import ENTRIES
from bench.cli import app
from bench.data.clusters import open_clusters
from bench.data.grown.fitted import fitted_count
from bench.micro.disk import measure_disk
from bench.retrieval.child import ChildRequest, SearchFiles
from bench.retrieval.command import parse_windows, run_plan
from bench.retrieval.kernel import process_read_bytes
from bench.retrieval.plan import check_cache_budgets
from bench.retrieval.processes import run_child
from bench.retrieval.questions import choose_questions, question_paths, read_question_vectors
from bench.retrieval.run import SearchRun, searcher_reads
from carpool.errors import ConfigError
from tests.bench.retrieval.conftest import make_plan, unit_rows
from tests.waiting import WAIT_S, wait_until

FAISS = ("faiss-memory", "faiss-ondisk", "carpool-exact")


def test_contestants_agree_with_faiss_and_with_the_kernel_and_the_report_says_so(
    tmp_path: Path, tiny_index: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(tmp_path, tiny_index, contestants=FAISS)
    path = tmp_path / "search.json"
    assert run_plan(plan, data=None, questions=[questions], json_file=path, environ={})
    report = json.loads(path.read_text())
    assert report["benchmark"] == "search"
    assert report["machine"]["cores"] >= 1
    results = report["results"]
    assert results["is_memory_limited"] is False
    assert results["indexes"][0]["row_count"] == 400
    rows = {row["contestant"]: row for row in results["summary"]["rows"]}
    assert list(rows) == [*FAISS, "oracle-window", "oracle-static"]
    for name in FAISS:
        assert rows[name]["agreement"]["different"] == 0
        assert rows[name]["agreement"]["same"] + rows[name]["agreement"]["tied"] == 40
        assert rows[name]["figures"]["queries_per_s"]["median"] > 0
        assert rows[name]["bytes_agree"]
    assert rows["carpool-exact"]["to_baseline"]["queries_per_s"]["median"] == 1
    for name in FAISS:
        assert rows[name]["figures"]["recall_at_probes"]["median"] == 1
        assert 0.3 < rows[name]["figures"]["recall"]["median"] < 1
    assert len(results["cells"]["disk"]) == 3  # before, amid and after the block
    assert "no process was limited" in capsys.readouterr().out


def test_too_little_memory_in_a_cgroup_is_a_result(
    tmp_path: Path, tiny_index: Path, questions: Path, cgroups: Any
) -> None:
    share = (8 << 20) / (400 * 16 * 4)  # less than NumPy and FAISS take
    plan = make_plan(
        tmp_path,
        tiny_index,
        limited_by=cgroups,
        contestants=("faiss-memory", "faiss-ondisk"),
        memory_share=share,
    )
    run = SearchRun(plan, [read_question_vectors([questions])])
    cells = {cell.contestant: cell for cell in run.run().cells}
    assert cells["faiss-memory"].status == "ok"
    group = cells["faiss-memory"].group
    assert group is not None
    assert group.peak_bytes is not None
    assert group.peak_bytes > 1 << 20
    assert cells["faiss-ondisk"].status == "out of memory"
    assert "killed it at its limit" in cells["faiss-ondisk"].error


def test_carpool_without_room_for_a_cluster_is_out_of_memory(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    plan = make_plan(tmp_path, tiny_index, contestants=("carpool",), memory_share=0.4)
    (cell,) = SearchRun(plan, [read_question_vectors([questions])]).run().cells
    assert (cell.status, cell.is_bug) == ("out of memory", False)
    assert "raise --memory" in cell.error


def test_a_process_that_takes_too_long_or_fails_is_a_result(
    data: SearchData, tmp_path: Path
) -> None:
    files = SearchFiles(
        index_dir=str(data.index_dir),
        prepared_dir=str(tmp_path),
        folder=str(tmp_path),
        top_k=5,
    )
    limits = Limits(memory_bytes=None, threads=1, window=5)
    request = ChildRequest(kind="run", contestant="faiss-ondisk", files=files, limits=limits)
    assert run_child(request, tmp_path / "slow", timeout_s=0.0).status == "timed out"
    failed = run_child(request, tmp_path / "failed", timeout_s=WAIT_S)
    assert failed.status == "failed"  # there are no queries in that folder
    assert "queries.npy" in failed.outcome.error
    assert failed.outcome.is_bug


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_bench_ends_the_contestant(
    tmp_path: Path, tiny_index: Path, how: signal.Signals
) -> None:
    np.save(tmp_path / "many.npy", unit_rows(np.random.default_rng(5), 100_000))
    arguments = {
        "--index": tiny_index,
        "--questions": tmp_path / "many.npy",
        "--work": tmp_path / "work",
        "--contestants": "faiss-ondisk",
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
        wait_until((tmp_path / "work" / "cells" / "0-1-faiss-ondisk" / "request.json").exists)
        children = wait_until(lambda: _children(bench.pid))
        bench.send_signal(how)
        bench.wait(WAIT_S)
        wait_until(lambda: not any(Path("/proc", pid).exists() for pid in children))
    finally:
        bench.kill()
        bench.wait()


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def grown_set(folder: Path, *, listed: str = "queries.npy", fitted: int = 0) -> Path:
    folder.mkdir()
    np.save(folder / "queries.npy", unit_rows(np.random.default_rng(1), 90))
    (folder / "grown.json").write_text(
        json.dumps({"files": {listed: "00"}, "questions_fitted": fitted, "seed": 0})
    )
    return folder / "queries.npy"


@pytest.mark.parametrize(("fitted", "left_out"), [(0, 30), (20, 30), (40, 40)])
def test_questions_that_chose_the_spread_of_a_grown_set_are_never_asked(
    tmp_path: Path, fitted: int, left_out: int
) -> None:
    """A set with a given spread says 0 and was fitted in another run: a third is left out."""
    asked = read_question_vectors([grown_set(tmp_path / "set", fitted=fitted)])
    assert asked.left_out == left_out
    assert len(asked.vectors) == 90 - left_out


def test_questions_of_no_grown_set_are_all_asked(tmp_path: Path) -> None:
    other = grown_set(tmp_path / "other", listed="others.npy")
    assert read_question_vectors([other]).left_out == 0
    damaged = grown_set(tmp_path / "damaged")
    (damaged.parent / "grown.json").write_text('{"files": {}')
    with pytest.raises(ConfigError, match=r"cannot read .*grown\.json .* grow the set again"):
        fitted_count(damaged, 90)


def test_questions_are_distinct_and_in_an_order_of_the_seed(questions: Path) -> None:
    asked = read_question_vectors([questions, questions])
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


def test_plans_that_cannot_run_are_refused(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    asked = [read_question_vectors([questions])]
    with pytest.raises(ConfigError, match="--memory or --cache"):
        make_plan(tmp_path, tiny_index, memory_share=0.4, cache_share=0.1)
    with pytest.raises(ConfigError, match="--nprobe 9 is more than the 8 clusters"):
        SearchRun(make_plan(tmp_path, tiny_index, nprobe=9), asked)
    with pytest.raises(ConfigError, match="2 indexes and 3 seeds"):
        SearchRun(make_plan(tmp_path, tiny_index, indexes=(tiny_index,) * 2, seeds=3), asked)
    with pytest.raises(ConfigError, match="faiss-memory cannot be limited so"):
        check_cache_budgets([ENTRIES["faiss-memory"], ENTRIES["carpool-exact"]])
    with pytest.raises(ConfigError, match="which questions"):
        question_paths([], 1, None, {})
    for text in ("", "20,x", "0", "20,20"):
        with pytest.raises(ConfigError, match="give window sizes"):
            parse_windows(text)


def test_the_kernel_counts_what_a_direct_read_reads(tiny_index: Path) -> None:
    before = process_read_bytes()
    try:
        rates = measure_disk(
            searcher_reads(open_clusters(tiny_index)), seed=0, depths=(1, 2), duration_s=0.02
        )
    except ConfigError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    assert process_read_bytes() - before >= sum(rate.bytes_read for rate in rates) > 0
    assert all(rate.bytes_per_s > 0 for rate in rates)


def test_the_command_lists_who_can_take_part() -> None:
    listed = CliRunner().invoke(app, ["search", "--list"])
    assert listed.exit_code == 0
    assert "carpool" in listed.output
    assert CliRunner().invoke(app, ["search"]).exit_code == 2  # no index
