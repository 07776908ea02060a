"""The figures of VectorLiteRAG: its printed equations, its oracle, and a small run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.papers.options import VectorLiteOptions
from bench.papers.vectorlite.figures import run
from bench.papers.vectorlite.held_out import HeldOut, last_scan
from bench.papers.vectorlite.printed import (
    batch_time_eq5,
    clusters_as_printed,
    least_hit_rate_eq4,
)
from carpool.errors import ConfigError
from searcher.plan import search_times
from searcher.plan.beta_binomial import BetaBinomial
from searcher.plan.hot_set import nested_hot_sets
from searcher.plan.search_times import SearchTimes, batch_time_us
from tests.searcher.helpers import SmallIndex, clustered_index, normalised
from tests.searcher.test_hot_set import queries_of

NLIST, DIMENSION, ROWS = 16, 64, 30_000
TIMES = SearchTimes(fixed_us=50, other_us=10, scan_us=2000, threads=2)
TARGETS = (
    {"target_us": 3000.0, "queries_per_s": 0.0},
    {"target_us": 0.0, "queries_per_s": 1500.0},
    {"target_us": 6000.0, "queries_per_s": 1200.0},
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
    given = {"figure": "bytes", "index": index.dir, "nprobe": 8}
    report = tmp_path / "report.json"
    run(VectorLiteOptions(questions=asked(tmp_path, 300), rounds=2, json_file=report, **given))
    found = msgspec.json.decode(report.read_bytes())["results"]
    assert found["questions"] == 300 and found["times"]["scan_us"] > 0
    assert len(found["bytes"]) == 5
    assert all(row["printed_over"] > 0 for row in found["bytes"].values())
    with pytest.raises(ConfigError, match="100 distinct questions"):
        run(VectorLiteOptions(questions=asked(tmp_path, 100), **given))


@given(st.lists(st.floats(0, 9), min_size=1, max_size=70), st.integers(1, 5))
def test_scans_end_as_those_of_threads_that_take_what_waits(
    misses: list[float], threads: int
) -> None:
    left, ends = list(misses), [0.0] * threads
    first = True
    while left:
        order = sorted(range(threads), key=lambda thread: ends[thread])
        for free, thread in enumerate(order if first else order[:1]):
            share = min(8, -(-len(left) // (threads - free if first else 1)))
            ends[thread] += sum(left[:share])
            left = left[share:]
        first = False
    assert last_scan(np.array([misses]), threads)[0] == pytest.approx(max(ends))


def test_the_least_hit_rate_of_equation_4_leaves_out_ties() -> None:
    # Two probes, both likely: P(0) = 1/4, P(1) = 1/2, P(2) = 1/4.
    # k = 1: 1 * 2 * 1/2 * P(> 1) = 1/4; k = 2: P(> 2) is 0; of two probes.
    assert least_hit_rate_eq4(BetaBinomial(0.5, 0.0, 2), 2) == pytest.approx(1 / 8)
    assert BetaBinomial(0.5, 0.0, 2).expected_least(2) == pytest.approx((9 / 16 + 1 / 16) / 2)
    assert least_hit_rate_eq4(BetaBinomial(0.3, 0.2, 10), 1) == pytest.approx(0.3)


def test_equation_5_is_the_model_where_each_thread_has_a_query() -> None:
    hits = BetaBinomial(0.5, 0.2, 12)
    for batch in (1, 2):
        least = hits.expected_least(batch)
        printed = batch_time_eq5(TIMES, batch, least)
        assert printed == pytest.approx(batch_time_us(TIMES, hits, batch))
    assert batch_time_eq5(TIMES, 8, hits.expected_least(8)) > batch_time_us(TIMES, hits, 8)


def test_the_oracle_is_what_a_sweep_finds_and_the_printed_equations_choose_more() -> None:
    probes = np.array(queries_of(1, 300, 30, 6))
    sets = nested_hot_sets(list(probes[:150]), np.ones(30, np.int64))
    judges = HeldOut(probes[150:], sets.clusters, seed=0)
    for wanted in TARGETS:
        swept = [number for number in range(31) if judges.meets(TIMES, number, **wanted)]
        assert judges.fewest(TIMES, **wanted) == swept[0] > 0
        assert clusters_as_printed(sets, TIMES, **wanted) >= swept[0]
