"""Whole runs of `carpool bench search` on a tiny collection, in real processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.search import run as search
from bench.search.child import ChildRequest, ContestantFigures
from bench.search.contestants.registry import ENTRIES
from bench.search.options import SearchOptions
from bench.search.processes import run_child
from bench.search.report import ALONE, BUILD, CLIENTS, WINDOWS, Cell
from bench.search.run import SearchRun, check_folder, halves, run
from carpool.errors import ConfigError
from tests.bench.search.conftest import make_options
from tests.waiting import WAIT_S


def test_contestants_are_built_tuned_and_measured_and_the_report_says_so(
    tmp_path: Path,
    collection: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ENTRIES, "absent", ENTRIES["carpool"]._replace(package="no_such_package"))
    path = tmp_path / "search.json"
    options = make_options(
        tmp_path,
        collection,
        contestants="carpool-exact,carpool,faiss-memory,absent",
        index=collection / "index",
        json_file=path,
    )
    assert run(options)
    report = json.loads(path.read_text())
    assert report["benchmark"] == "search"
    assert all(report["promises"].values())
    low, high = report["results"]["rows"].values()
    assert set(low) == set(high) == {"carpool", "carpool-exact", "faiss-memory"}
    assert low["carpool-exact"]["setting"] == low["carpool"]["setting"]
    compared = [cell for cell in report["results"]["cells"] if cell["at_probes"] is not None]
    assert {cell["contestant"] for cell in compared} == {"carpool"}
    assert all(0.998 <= cell["at_probes"] <= 1 for cell in compared)
    for name, row in low.items():
        assert row["queries_per_s"] > 0
        assert 0.85 < row["recall"] <= 1
        assert high[name]["setting"] >= row["setting"]
    assert low["faiss-memory"]["build_s"] > 0 and low["carpool"]["build_s"] is None
    shown = capsys.readouterr()
    assert "no process was limited" in shown.err
    assert "absent is left out: its package is not installed (no_such_package)" in shown.err


def cells_of(options: SearchOptions) -> dict[str, list[Cell]]:
    names = tuple((options.contestants or "").split(","))
    done = list(SearchRun(options).cells(names))
    return {name: [cell for cell in done if cell.contestant == name] for name in names}


@pytest.mark.usefixtures("cgroups")
def test_too_little_memory_in_a_cgroup_is_a_result(
    tmp_path: Path, collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "drop_page_cache", lambda: None)  # other tests run
    options = make_options(
        tmp_path,
        collection,
        memory_held_by="cgroup",
        contestants="faiss-memory,faiss-rabitq",
        memory=(8 << 20) / (400 * 16 * 4),  # less than NumPy and FAISS take
    )
    cells = cells_of(options)
    assert {cell.mode for cell in cells["faiss-memory"]} == {BUILD, WINDOWS, CLIENTS, ALONE}
    assert all(cell.status == "ok" for cell in cells["faiss-memory"])
    for cell in cells["faiss-memory"][1:]:
        assert isinstance(cell.figures, ContestantFigures)
        assert (cell.figures.peak_bytes or 0) > 1 << 20
    for cell in cells["faiss-rabitq"][1:]:
        assert cell.status == "out of memory"
        assert "killed it at its limit" in cell.error


def test_a_process_that_takes_too_long_or_fails_is_a_result(tmp_path: Path) -> None:
    request = ChildRequest(
        contestant="faiss-memory",
        prepared=str(tmp_path),
        arrays=str(tmp_path),
        setting=1,
    )
    slow = run_child(request, tmp_path / "slow", is_held=False, timeout_s=0.0)
    assert slow.status == "timed out"
    failed = run_child(request, tmp_path / "failed", is_held=False, timeout_s=WAIT_S)
    assert failed.status == "failed"  # there are no questions in that folder
    assert "tuning.npy" in failed.error


def test_questions_are_distinct_and_in_one_random_order(collection: Path) -> None:
    asked = np.concatenate([np.load(collection / "queries.npy")] * 2)
    (one, left), (same, _) = halves(asked, 16), halves(asked, 16)
    assert (one == same).all()
    assert len(one) == len(left) == 60
    assert len(np.unique(np.concatenate([one, left]), axis=0)) == 120
    with pytest.raises(ConfigError, match="of dimension 8"):
        halves(asked, 8)


def test_a_folder_without_a_file_is_refused(tmp_path: Path, collection: Path) -> None:
    check_folder(collection)
    with pytest.raises(ConfigError, match="make it with carpool bench data"):
        check_folder(tmp_path)
