"""`carpool bench simulator` from options to exit code, table and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs
from typer.testing import CliRunner, Result

from bench.cli import app
from bench.simulator import agreement
from bench.simulator.outcome import Outcome
from tests.searcher.helpers import normalised, random_index

DIMENSION = 32


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Of a run over a tiny index: 60 questions of which 24 measure costs."""
    rng = np.random.default_rng(5)
    folder = tmp_path / "data" / "embeddings"
    folder.mkdir(parents=True)
    for name in ("queries-hotpotqa", "queries-nq"):
        np.save(folder / f"{name}.npy", normalised(rng.standard_normal((40, DIMENSION))))
    index = random_index(tmp_path / "index", rows=2_000, dimension=DIMENSION, nlist=12)
    given = {
        "--data": tmp_path / "data",
        "--index": index.dir,
        "--questions": 60,
        "--nprobe": 3,
        "--window": 8,
    }
    given |= {"--rounds": 2, "--json": tmp_path / "figures.json"}
    return ["simulator", *(str(word) for pair in given.items() for word in pair)]


def run(arguments: list[str]) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, arguments)


def simulator_says(monkeypatch: pytest.MonkeyPatch, *, more_bytes: int) -> None:
    """Has the simulator say so many bytes more than it read. Latencies, which depend on the
    machine, are let pass.
    """
    simulate = agreement.simulate

    def simulated(*given: Any, **named: Any) -> Outcome:
        outcome = simulate(*given, **named)
        return structs.replace(outcome, bytes_read=outcome.bytes_read + more_bytes)

    monkeypatch.setattr(agreement, "simulate", simulated)
    monkeypatch.setattr(agreement, "is_close", lambda ratio: True)


def test_a_run_whose_bytes_are_equal_ends_well_and_its_figures_are_in_the_json(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    simulator_says(monkeypatch, more_bytes=0)
    said = run(arguments)
    assert said.exit_code == 0, said.output
    assert "equal" in said.output and "DIFFER" not in said.output
    figures = msgspec.json.decode((tmp_path / "figures.json").read_bytes())
    (comparison,) = figures["comparisons"]
    found = comparison["agreement"]
    assert found["real_bytes"] == [found["simulated_bytes"]] * 2 and found["simulated_bytes"] > 0
    assert len(found["rounds_ms"]) == 2 and found["asked"]["window"] == 8
    assert comparison["ratios"].keys() == {"mean", "p50", "p99"}
    assert figures["index"]["rows"] == 2_000


def test_a_single_byte_more_ends_with_1(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator_says(monkeypatch, more_bytes=1)
    said = run(arguments)
    assert said.exit_code == 1
    assert "BYTES DIFFER" in said.output


def test_windows_that_the_questions_do_not_fill_are_refused(arguments: list[str]) -> None:
    said = run([*arguments, "--window", "25"])
    assert said.exit_code == 2
    assert "--questions 60 are too few" in said.output


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (("--questions", "81"), "the data have 80 distinct questions"),
        (("--nprobe", "13"), "more than the 12 clusters"),
        (("--budget-share", "0.01"), "budget_bytes"),
    ],
)
def test_what_cannot_be_asked_of_this_index_is_said(
    arguments: list[str], changed: tuple[str, str], what: str
) -> None:
    said = run([*arguments, *changed])
    assert what in str(said.exception)


def test_an_unknown_way_is_refused_with_those_that_there_are(arguments: list[str]) -> None:
    said = run([*arguments, "--way", "faiss"])
    assert said.exit_code == 2
    assert "cagr-best-greedy" in said.output
