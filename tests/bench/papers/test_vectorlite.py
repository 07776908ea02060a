"""The figures of VectorLiteRAG: its printed equations, its oracle, and a small run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.options import VectorLiteOptions
from bench.papers.vectorlite.figures import HeldOut, run
from bench.papers.vectorlite.printed import (
    batch_time_eq5,
    clusters_as_printed,
    correlation_of,
    hit_chances,
    least_hit_rate_eq4,
)
from carpool.errors import ConfigError
from searcher.plan import search_times
from searcher.plan.hot_set import nested_hot_sets
from searcher.plan.search_times import SearchTimes, batch_time_us
from tests.searcher.helpers import SmallIndex, clustered_index, normalised
from tests.searcher.test_hot_set import queries_of

NLIST, DIMENSION, ROWS = 16, 64, 30_000
TIMES = SearchTimes(fixed_us=50, other_us=10, scan_us=2000, threads=2)
TARGETS = (
    {"target_us": 1500.0, "queries_per_s": 0.0},
    {"target_us": 0.0, "queries_per_s": 1500.0},
    {"target_us": 3000.0, "queries_per_s": 1200.0},
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    folder = tmp_path_factory.mktemp("hot-set")
    return clustered_index(folder, nlist=NLIST, dimension=DIMENSION, rows=ROWS)


def asked(folder: Path, count: int) -> Path:
    random = np.random.default_rng(2)
    # The first directions are asked for more.
    vectors = random.standard_normal((count, DIMENSION)) * np.linspace(2, 0.5, DIMENSION)
    np.save(folder / "questions.npy", normalised(vectors.astype(np.float32)))
    return folder / "questions.npy"


def test_a_run_reports_every_target(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_times, "ERROR_MAX", 10.0)  # other tests run on the same cores
    given = {"index": index.dir, "nprobe": 8}
    report = tmp_path / "report.json"
    run(VectorLiteOptions(questions=asked(tmp_path, 300), rounds=2, json_file=report, **given))
    found = msgspec.json.decode(report.read_bytes())["results"]
    assert found["questions"] == 300 and found["times"]["scan_us"] > 0
    assert len(found["bytes"]) == 5
    assert all(row["printed_over"] > 0 for row in found["bytes"].values())
    with pytest.raises(ConfigError, match="100 distinct questions"):
        run(VectorLiteOptions(questions=asked(tmp_path, 100), **given))


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 60))
def test_a_distribution_has_its_mean_and_variance(
    mean: float, correlation: float, nprobe: int
) -> None:
    chances = hit_chances(mean, correlation, nprobe)
    rates = np.arange(nprobe + 1) / nprobe
    assert chances.min() >= 0
    assert chances.sum() == pytest.approx(1)
    assert chances @ rates == pytest.approx(mean, abs=1e-6)
    variance = chances @ (rates - mean) ** 2
    expected = mean * (1 - mean) * (1 + (nprobe - 1) * correlation) / nprobe
    assert variance == pytest.approx(expected, abs=1e-6)


def test_the_least_hit_rate_of_equation_4_leaves_out_ties() -> None:
    # Two probes, both likely: P(0) = 1/4, P(1) = 1/2, P(2) = 1/4.
    # k = 1: 1 * 2 * 1/2 * P(> 1) = 1/4; k = 2: P(> 2) is 0; of two probes.
    assert least_hit_rate_eq4(hit_chances(0.5, 0.0, 2), 2) == pytest.approx(1 / 8)
    assert least_hit_rate_eq4(hit_chances(0.3, 0.2, 10), 1) == pytest.approx(0.3)


def test_equation_5_takes_the_fewest_hits_of_a_batch_and_the_model_their_mean() -> None:
    assert batch_time_eq5(TIMES, 8, 0.5) == pytest.approx(batch_time_us(TIMES, 0.5, 8))
    least = least_hit_rate_eq4(hit_chances(0.5, 0.2, 12), 8)
    assert batch_time_eq5(TIMES, 8, least) > batch_time_us(TIMES, 0.5, 8)


def test_a_correlation_is_found_again_from_mean_and_variance() -> None:
    rates = np.arange(13) / 12
    chances = hit_chances(0.4, 0.3, 12)
    variance = float(chances @ (rates - 0.4) ** 2)
    assert correlation_of(0.4, variance, 12) == pytest.approx(0.3)
    assert correlation_of(0.4, 0.0, 12) == correlation_of(1.0, 0.0, 12) == 0.0


def test_the_oracle_is_what_a_sweep_finds_and_the_printed_equations_choose_more() -> None:
    probes = np.array(queries_of(1, 300, 30, 6))
    sets = nested_hot_sets(list(probes[:150]), np.ones(30, np.int64))
    judges = HeldOut(probes[150:], sets.clusters)
    for wanted in TARGETS:
        swept = [number for number in range(31) if judges.meets(TIMES, number, **wanted)]
        assert judges.fewest(TIMES, **wanted) == swept[0] > 0
        assert clusters_as_printed(sets, TIMES, **wanted) >= swept[0]
