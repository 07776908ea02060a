"""The simulator beside the searcher's own search plane: the same windows, the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs
from typer.testing import CliRunner, Result

from bench.cli import app
from bench.core.progress import silent
from bench.simulator import agreement
from bench.simulator.agreement import (
    Comparison,
    SimulatorAgreement,
    compare,
    middle,
    typical_us,
)
from bench.simulator.real import RealRun
from bench.simulator.simulation import SimulationOutcome
from carpool.disk.index import OpenIndex, open_index
from carpool.errors import RetryableError
from searcher.build import ExactOptions
from searcher.settings import SearcherSettings
from tests.searcher.helpers import Float32, normalised, random_index

NLIST, DIMENSION = 24, 32
PAGE = 4096


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> OpenIndex:
    """24 clusters of about 6 pages."""
    folder = tmp_path_factory.mktemp("simulator") / "index"
    written = random_index(folder, rows=4_000, dimension=DIMENSION, nlist=NLIST, seed=3)
    opened = open_index(written.dir)
    opened.close()
    return opened


def compared(index: OpenIndex, *, rounds: int = 1, **options: Any) -> SimulatorAgreement:
    questions: Float32 = normalised(np.random.default_rng(4).standard_normal((160, DIMENSION)))
    asked = Comparison(
        nprobe=4,
        window=8,
        searcher=SearcherSettings(scoring_threads=1, direct_io="auto"),
        options=ExactOptions(**options),
        rounds=rounds,
        disk_s=0.02,
    )
    return compare(index, questions, asked, silent)


def test_a_real_run_reads_the_bytes_of_the_simulator(index: OpenIndex) -> None:
    found = compared(index, prefetch_bytes=0, read_ahead_bytes=1)
    assert found.bytes_are_equal
    assert found.simulated_bytes > 0
    assert found.real_ms.count == found.simulated_ms.count == 96
    assert found.disk.bytes_per_us > 0
    assert found.costs.turn_us > 0
    assert all(ratio > 0 for ratio in found.ratios.values())


@pytest.mark.parametrize("slice_bytes_max", [0, 2 * PAGE])
def test_a_real_run_that_reads_ahead_reads_the_bytes_of_the_simulator(
    index: OpenIndex, slice_bytes_max: int
) -> None:
    found = compared(
        index,
        prefetch_bytes=16 * PAGE,
        read_ahead_bytes=24 * PAGE,
        slice_bytes_max=slice_bytes_max,
        rounds=2,
    )
    assert len(found.real_bytes) == 2
    assert found.bytes_are_equal
    assert found.simulated_bytes > 0


def test_a_cluster_that_cannot_be_read_ends_the_comparison_with_its_reason(tmp_path: Path) -> None:
    written = random_index(tmp_path / "index", rows=1_000, dimension=DIMENSION, nlist=4, seed=3)
    written.damage(0)
    opened = open_index(written.dir)
    opened.close()
    with pytest.raises(RetryableError, match=r"not searched whole.*cluster 0"):
        compared(opened)


def test_a_querys_latency_is_its_median_and_costs_are_of_the_middle_run() -> None:
    rounds = [(900.0, 10.0, 500.0, 12.0), (880.0, 11.0, 13.0, 700.0), (910.0, 600.0, 12.0, 11.0)]
    assert typical_us(rounds) == [900.0, 11.0, 13.0, 12.0]
    runs = [RealRun(0, (us,), 0) for us in (5.0, 900.0, 7.0)]
    assert middle(runs).latency_us == (7.0,)
    assert middle(runs[:2]).latency_us == (5.0,)


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
        "--rounds": 1,
        "--json": tmp_path / "figures.json",
    }
    return ["simulator", *(str(word) for pair in given.items() for word in pair)]


def run(arguments: list[str]) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, arguments)


@pytest.mark.parametrize(("more_bytes", "exit_code"), [(0, 0), (1, 1)])
def test_the_command_ends_with_1_when_a_single_byte_differs(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    more_bytes: int,
    exit_code: int,
) -> None:
    """Latencies, which depend on the machine, are let pass."""
    simulate = agreement.simulate

    def simulated(*given: Any) -> SimulationOutcome:
        outcome = simulate(*given)
        return structs.replace(outcome, bytes_read=outcome.bytes_read + more_bytes)

    monkeypatch.setattr(agreement, "simulate", simulated)
    monkeypatch.setattr(agreement, "OFF_MAX", 1e9)
    done = run(arguments)
    assert done.exit_code == exit_code, done.output
    assert ("equal" in done.output) is (exit_code == 0)
    report = msgspec.json.decode((tmp_path / "figures.json").read_bytes())
    (found,) = report["results"]
    assert found["real_bytes"] == [found["simulated_bytes"] - more_bytes]
    assert found["ratios"].keys() == {"mean", "p50", "p99"}
    assert report["index"]["row_count"] == 2_000


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (("--questions", "81"), "the data have 80 distinct questions"),
        (("--nprobe", "13"), "more than the 12 clusters"),
        (("--budget-share", "0.01"), "budget_bytes"),
        (("--window", "25"), "--questions 60 are too few"),
    ],
)
def test_options_that_do_not_fit_the_index_are_refused(
    arguments: list[str], changed: tuple[str, str], what: str
) -> None:
    done = run([*arguments, *changed])
    assert what in str(done.exception) + done.output
