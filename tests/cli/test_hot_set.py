"""`carpool index hot-set`, as people and programs call it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from carpool.disk.index import open_index
from carpool.errors import ConfigError
from cli.index import app
from searcher import hot_set_report
from searcher.codes.open import ChosenCodes
from searcher.plan.search_times import SearchTimes, TimeSample
from tests.searcher.helpers import SmallIndex, normalised, write_index

NLIST, DIMENSION, ROWS = 16, 32, 8_000
SLOW = SearchTimes(fixed_us=100, other_us=50, scan_us=2000, threads=2)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    random = np.random.default_rng(1)
    centroids = normalised(random.standard_normal((NLIST, DIMENSION)).astype(np.float32))
    near = centroids[random.integers(NLIST, size=ROWS)]
    vectors = normalised(near + 0.1 * random.standard_normal(near.shape).astype(np.float32))
    return write_index(tmp_path_factory.mktemp("hot-set"), vectors, centroids, codecs=("rabitq4",))


@pytest.fixture
def questions(index: SmallIndex, tmp_path: Path) -> Path:
    """Most ask for the first two clusters."""
    random = np.random.default_rng(2)
    asked = np.where(random.random(400) < 0.7, random.integers(2, size=400), 9)
    noise = 0.1 * random.standard_normal((400, DIMENSION))
    np.save(tmp_path / "questions.npy", normalised((index.centroids[asked] + noise).astype("f4")))
    return tmp_path / "questions.npy"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["hot-set", *map(str, arguments)], catch_exceptions=True)


def of_a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of other processes make times that fit no line."""

    def fit(samples: Sequence[TimeSample], threads: int) -> SearchTimes:
        assert len(samples) > 20 and threads >= 1 and all(one.took_us > 0 for one in samples)
        return SLOW

    monkeypatch.setattr(hot_set_report, "fit_search_times", fit)
    monkeypatch.setattr(hot_set_report, "MEASURE_US", 1_000)


def test_the_fewest_bytes_for_a_target_are_chosen_and_drawn(
    index: SmallIndex, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_quiet_machine(monkeypatch)

    def chosen(*options: object) -> dict[str, Any]:
        found = run(index.dir, "--questions", questions, "--nprobe", 2, "--json", *options)
        assert found.exit_code == 0, found.output
        report: dict[str, Any] = json.loads(found.stdout)
        return report

    report = chosen("--target-ms", 3)
    choice = report["choice"]
    assert choice["meets"] and 2 * choice["search_us"] <= 3000 and report["questions"] == 400
    assert 0 < choice["size_bytes"] < report["all_bytes"] == ROWS * DIMENSION * 2
    assert {0, 1} <= set(choice["clusters"]) and len(choice["clusters"]) < 8
    sizes = [point["size_bytes"] for point in report["points"]]
    assert sizes == sorted(set(sizes)) and choice["size_bytes"] in sizes
    assert [point["meets"] for point in report["points"]] == [
        size >= choice["size_bytes"] for size in sizes
    ]
    assert chosen()["choice"]["size_bytes"] == report["all_bytes"]  # no target
    limit = choice["size_bytes"] - 1
    less = chosen("--target-ms", 3, "--bytes-max", limit)["choice"]
    assert not less["meets"] and less["size_bytes"] <= limit
    assert chosen("--queries-per-s", 1500)["choice"]["batch"] > 1

    shown = run(index.dir, "--questions", questions, "--nprobe", 2, "--target-ms", 3)
    assert shown.exit_code == 0
    assert "chosen" in shown.stdout and f"{choice['size_bytes']:,}" in shown.stdout


def test_a_plot_is_written_or_refused_before_anything_is_measured(
    index: SmallIndex, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_quiet_machine(monkeypatch)
    options = [index.dir, "--questions", questions, "--nprobe", 2, "--target-ms", 3]
    plot = tmp_path / "new" / "plot.png"
    found = run(*options, "--plot", plot)
    if importlib.util.find_spec("matplotlib") is None:
        assert isinstance(found.exception, ConfigError)
        assert "pip install 'carpool[bench]'" in str(found.exception)
        assert "measuring" not in found.stderr
        return
    assert found.exit_code == 0, found.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    refused = run(*options, "--plot", questions / "plot.png")
    assert isinstance(refused.exception, ConfigError)


def test_real_times_are_measured(index: SmallIndex, questions: Path) -> None:
    for _ in range(5):  # other tests may run on the same cores
        found = run(index.dir, "--questions", questions, "--nprobe", 12, "--json")
        if found.exit_code == 0:
            break
        assert "measure again" in str(found.exception)
    assert json.loads(found.stdout)["times"]["scan_us"] > 0


def test_no_questions_and_codes_that_do_not_fit_are_refused(
    index: SmallIndex, questions: Path, tmp_path: Path
) -> None:
    (tmp_path / "none.txt").write_text("\n")
    none = run(index.dir, "--questions", tmp_path / "none.txt")
    assert "there are no questions" in str(none.exception)
    small = run(index.dir, "--questions", questions, "--set", "searcher.budget_bytes=300000")
    assert "searcher.budget_bytes (300,000)" in str(small.exception)
    # A searcher needs memory for passages and exact searches, too.
    opened = open_index(index.dir)
    smallest = opened.open_codes(opened.manifest.codes[-1].codec)
    only_codes = ChosenCodes(codes=smallest).memory_bytes
    opened.close()
    tight = run(index.dir, "--questions", questions, "--set", f"searcher.budget_bytes={only_codes}")
    assert f"searcher.budget_bytes ({only_codes:,})" in str(tight.exception)
