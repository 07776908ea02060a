"""`carpool index hot-set`, as people and programs call it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from carpool.disk.index import open_index
from cli import hot_set
from cli.index import app
from searcher.codes.open import ChosenCodes
from searcher.plan import search_times
from searcher.plan.search_times import SearchTimes, TimeSample
from tests.searcher.helpers import SmallIndex, clustered_index, normalised

NLIST, DIMENSION, ROWS = 16, 32, 8_000
TARGET = ("--target-ms", 3)
SLOW = SearchTimes(fixed_us=100, other_us=50, scan_us=2000, threads=2)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    folder = tmp_path_factory.mktemp("hot-set")
    return clustered_index(folder, nlist=NLIST, dimension=DIMENSION, rows=ROWS)


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

    monkeypatch.setattr(search_times, "fit_search_times", fit)
    monkeypatch.setattr(hot_set, "ROUNDS", 1)


def test_the_fewest_bytes_for_a_target_are_chosen(
    index: SmallIndex, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_quiet_machine(monkeypatch)

    def report_of(*options: object) -> dict[str, Any]:
        found = run(index.dir, "--questions", questions, "--nprobe", 2, "--json", *options)
        assert found.exit_code == 0, found.output
        report: dict[str, Any] = json.loads(found.stdout)
        return report

    report = report_of("--target-ms", 1.5)
    chosen = report["chosen"]
    assert chosen["meets"] and 2 * chosen["search_us"] <= 1500
    assert 2 <= chosen["clusters"] < 8 and report["shard_bytes"] > chosen["size_bytes"]
    assert report_of("--queries-per-s", 1500)["chosen"]["batch"] > 1
    needless = report_of("--target-ms", 1000)
    assert needless["chosen"]["clusters"] == 0 and needless["shard_bytes"] is None
    hopeless = report_of("--target-ms", 0.1)
    assert not hopeless["chosen"]["meets"] and hopeless["shard_bytes"] is None
    shown = run(index.dir, "--questions", questions, "--nprobe", 2, "--target-ms", 1.5)
    assert shown.exit_code == 0 and str(report["shard_bytes"]) in shown.stdout


def test_no_questions_and_codes_that_do_not_fit_are_refused(
    index: SmallIndex, questions: Path, tmp_path: Path
) -> None:
    (tmp_path / "none.txt").write_text("\n")
    none = run(index.dir, *TARGET, "--questions", tmp_path / "none.txt")
    assert "has no question" in str(none.exception)
    assert "--target-ms" in str(run(index.dir, "--questions", questions).exception)
    given = (index.dir, *TARGET, "--questions", questions, "--set")
    small = run(*given, "searcher.budget_bytes=300000")
    assert "searcher.budget_bytes (300,000)" in str(small.exception)
    # A searcher needs memory for passages and exact searches, too.
    opened = open_index(index.dir)
    smallest = opened.open_codes()
    only_codes = ChosenCodes(codes=smallest).memory_bytes
    opened.close()
    tight = run(*given, f"searcher.budget_bytes={only_codes}")
    assert f"searcher.budget_bytes ({only_codes:,})" in str(tight.exception)
