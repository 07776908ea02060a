"""The bench of the hot set: it judges by questions that choose nothing, and says so."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.shard.cli import HotSetOptions
from bench.shard.held_out import HeldOut, last_scan
from bench.shard.hot_set import run
from bench.shard.printed import batch_time_eq5, least_hit_rate_eq4
from bench.shard.sizing import Split, sizing_rows
from carpool.errors import ConfigError
from searcher.plan.beta_binomial import BetaBinomial
from searcher.plan.hot_set import nested_hot_sets
from searcher.plan.search_times import SearchTimes, batch_time_us
from tests.searcher.helpers import SmallIndex, normalised, write_index
from tests.searcher.test_hot_set import queries_of

NLIST, DIMENSION, ROWS = 16, 64, 30_000
TIMES = SearchTimes(fixed_us=50, other_us=10, scan_us=2000, threads=2)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    random = np.random.default_rng(1)
    centroids = normalised(random.standard_normal((NLIST, DIMENSION)).astype(np.float32))
    near = centroids[random.integers(NLIST, size=ROWS)]
    vectors = normalised(near + 0.1 * random.standard_normal(near.shape).astype(np.float32))
    return write_index(tmp_path_factory.mktemp("hot-set"), vectors, centroids, codecs=("rabitq4",))


def asked(folder: Path, count: int) -> Path:
    random = np.random.default_rng(2)
    # The first directions are asked for more.
    vectors = random.standard_normal((count, DIMENSION)) * np.linspace(2, 0.5, DIMENSION)
    np.save(folder / "questions.npy", normalised(vectors.astype(np.float32)))
    return folder / "questions.npy"


def test_a_run_reports_every_row(index: SmallIndex, tmp_path: Path) -> None:
    options = HotSetOptions(
        index=index.dir,
        questions=asked(tmp_path, 300),
        nprobe=8,
        shares="0.3,0.6",
        batches="1,8",
        threads="0,4",
        rounds=4,  # one of them fits also where other tests run
        splits=2,
        json_file=tmp_path / "report.json",
    )
    run(options)
    found = msgspec.json.decode((tmp_path / "report.json").read_bytes())["results"]
    assert found["questions_profiled"] == found["questions_held_out"] == 150
    assert found["times"]["scan_us"] > 0
    cells = [(share, batch) for share in (0.3, 0.6) for batch in (1, 8)]
    for rows in (found["hit_rates"], found["times_of_batches"]):
        assert [(row["share"], row["batch"]) for row in rows] == cells
    for row in found["hit_rates"]:
        assert 0 <= row["measured"] <= row["mean_held_out"] + 0.05
        assert row["eq4_as_printed"] <= row["expected"] + 1e-9
    for row in found["times_of_batches"]:
        assert row["measured_us"] > 0 and row["eq5_mean"] <= row["eq5_least"] + 1e-9
    assert len(found["sizes"]) == 10 and {row["threads"] for row in found["sizes"]} >= {4}


def test_too_few_questions_and_an_index_without_codes_are_refused(
    index: SmallIndex, tmp_path: Path
) -> None:
    few = HotSetOptions(index=index.dir, questions=asked(tmp_path, 100), nprobe=8)
    with pytest.raises(ConfigError, match="100 distinct questions"):
        run(few)
    bare = write_index(tmp_path / "bare", index.vectors[:500], index.centroids)
    with pytest.raises(ConfigError, match="no codes"):
        run(HotSetOptions(index=bare.dir, questions=asked(tmp_path, 300), nprobe=8))


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
        assert batch_time_eq5(TIMES, batch, least) == pytest.approx(
            batch_time_us(TIMES, hits, batch)
        )
    assert batch_time_eq5(TIMES, 8, hits.expected_least(8)) > batch_time_us(TIMES, hits, 8)


def test_the_fewest_clusters_are_those_that_a_sweep_finds() -> None:
    probes = np.array(queries_of(1, 300, 30, 6))
    clusters = nested_hot_sets(list(probes[:150]), np.ones(30, np.int64)).clusters
    judges = HeldOut(probes[150:], clusters, seed=0)
    for wanted in (
        {"target_us": 3000.0, "queries_per_s": 0.0},
        {"target_us": 0.0, "queries_per_s": 1500.0},
        {"target_us": 6000.0, "queries_per_s": 1200.0},
    ):
        swept = [number for number in range(31) if judges.strain(TIMES, number, **wanted) <= 1]
        assert judges.fewest(TIMES, **wanted) == swept[0] > 0
    assert judges.fewest(TIMES, target_us=10.0, queries_per_s=0.0) is None


def test_every_row_of_sizes_has_what_was_chosen_and_what_was_needed() -> None:
    splits = []
    for seed in (2, 3):
        probes = queries_of(seed, 600, 60, 6)
        sets = nested_hot_sets(probes[:300], np.full(60, 10, np.int64))
        judges = HeldOut(np.array(probes[300:]), sets.clusters, seed=0)
        splits.append(Split(probes=probes[:300], sets=sets, judges=judges))
    rows = sizing_rows(splits, TIMES, [2, 8])
    assert [row.threads for row in rows] == [2] * 5 + [8] * 5
    for row in rows:
        assert row.target_us or row.queries_per_s
        for at in (0, 1):
            least = row.least_bytes[at]
            assert 0 < least <= 600 and row.overs[at] == row.chosen_bytes[at] / least
            assert (row.strains[at] <= 1) == (row.chosen_bytes[at] >= least)
            assert (row.naive_strains[at] <= 1) == (row.naive_bytes[at] >= least)
