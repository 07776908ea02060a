"""The simulator beside the searcher's own search plane over an index: the same windows, the same
bytes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from bench.core.spread import Spread
from bench.simulator.agreement import Agreement, Question, compare, middle, typical_us
from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts
from bench.simulator.disk_calibration import Burst, median_bursts
from bench.simulator.real import RealRun
from bench.simulator.report import remarks
from bench.simulator.rig import OVERTAKE_US, rig_for
from bench.simulator.stopwatch import Stopwatch
from bench.simulator.ways import WAYS, Way
from carpool.clock import SystemClock
from carpool.disk.index import OpenIndex, open_index
from carpool.errors import RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.build import open_search_plane
from searcher.cluster_major import ClusterMajor
from searcher.events import NoEvents
from searcher.plan.eviction.policies import POLICY_NAMES, PolicyName
from searcher.settings import SearcherSettings
from tests.searcher.helpers import Float32, normalised, random_index

NLIST, DIMENSION = 24, 32
PAGE = 4096
DISK = DiskCosts(overhead_us=100, bytes_per_us=1_000)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> OpenIndex:
    """24 clusters of about 6 pages."""
    folder = tmp_path_factory.mktemp("simulator") / "index"
    written = random_index(folder, rows=4_000, dimension=DIMENSION, nlist=NLIST, seed=3)
    opened = open_index(written.dir)
    opened.close()
    return opened


def compared(index: OpenIndex, way: Way, *, rounds: int = 1, **settings: Any) -> Agreement:
    questions: Float32 = normalised(np.random.default_rng(4).standard_normal((160, DIMENSION)))
    asked = Question(
        way=way,
        nprobe=4,
        window=8,
        searcher=SearcherSettings(scoring_threads=1, direct_io="auto", **settings),
        rounds=rounds,
        burst_repeats=1,
    )
    return compare(index, questions, asked)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_real_run_reads_the_bytes_that_the_simulator_says(
    index: OpenIndex, policy: PolicyName
) -> None:
    way = structs.replace(WAYS["carpool"], policy=policy)
    found = compared(index, way, prefetch="none", read_ahead_bytes=1)
    assert found.bytes_are_equal and found.simulated_bytes > 0
    assert found.real_ms.count == found.simulated_ms.count == 96
    assert found.disk.bytes_per_us > 0 and found.costs.turn_us > 0 and len(found.disks) == 3
    assert all(ratio > 0 for ratio in found.latency_ratios.values())


def test_a_real_run_that_reads_ahead_reads_the_bytes_that_the_simulator_says(
    index: OpenIndex,
) -> None:
    found = compared(
        index, WAYS["carpool"], prefetch_bytes=16 * PAGE, read_ahead_bytes=24 * PAGE, rounds=2
    )
    assert (
        len(found.real_bytes) == len(found.rounds_ms) == 2
        and len(found.disks) == 5
        and len(found.others) == 4
    )
    assert found.bytes_are_equal and found.simulated_bytes > 0


def test_clusters_in_slices_are_read_in_slices_by_both(index: OpenIndex) -> None:
    whole = compared(index, WAYS["carpool"], prefetch_bytes=16 * PAGE, read_ahead_bytes=24 * PAGE)
    found = compared(
        index,
        WAYS["carpool"],
        prefetch_bytes=16 * PAGE,
        read_ahead_bytes=24 * PAGE,
        slice_bytes_max=2 * PAGE,
    )
    assert found.bytes_are_equal and found.simulated_bytes not in (0, whole.simulated_bytes)


@pytest.mark.parametrize("way", ["edgerag", "cagr-greedy", "cagr-agglomerative"])
def test_query_by_query_without_prefetching_reads_the_bytes_that_the_simulator_says(
    index: OpenIndex, way: str
) -> None:
    found = compared(index, WAYS[way])
    assert found.bytes_are_equal and found.simulated_bytes > 0


def test_a_cluster_that_cannot_be_read_ends_the_comparison_with_its_reason(tmp_path: Path) -> None:
    written = random_index(tmp_path / "index", rows=1_000, dimension=DIMENSION, nlist=4, seed=3)
    written.damage(0)
    opened = open_index(written.dir)
    opened.close()
    with pytest.raises(RetryableError, match=r"not searched whole.*cluster 0"):
        compared(opened, WAYS["carpool"])


def test_both_sides_have_the_planner_that_the_searcher_opens_by_default(index: OpenIndex) -> None:
    settings = SearcherSettings(direct_io="auto")
    rig = rig_for(index, WAYS["carpool"], settings, 0.4)
    size_bytes = sum(extent.size_bytes for extent in index.extents)
    budgeted = structs.replace(settings, budget_bytes=int(0.4 * size_bytes))
    plane = open_search_plane(index, budgeted, Metrics(), SystemClock(), events=NoEvents())
    assert isinstance(plane.executor, ClusterMajor)
    expected = plane.executor._planner
    plane.close()
    with rig.open_unused() as simulated, rig.open(Metrics(), events=NoEvents()) as real:
        for parts in (simulated, real):
            planner: Any = parts.planner
            assert planner._limits == dataclasses.replace(expected._limits, overtake_us=OVERTAKE_US)
            assert planner._size_bytes == expected._size_bytes
            assert type(planner._policy) is type(expected._policy)
            executor: Any = parts.plane.executor
            assert (
                executor._slices.extents == plane.executor._slices.extents == parts.slices.extents
            )


# ---- what becomes of a comparison


def rounds_of(
    *p99_ms: float, others: float = 0.0, way: str = "carpool", more_bytes: int = 0
) -> Agreement:
    """Rounds of 100 bytes and these p99s, beside a simulation of p99 100 ms."""
    spreads = tuple(Spread(count=9, mean=50.0, p50=40.0, p99=value, max=value) for value in p99_ms)
    return Agreement(
        asked=Question(way=WAYS[way]),
        real_bytes=(100,) * len(spreads),
        simulated_bytes=100 + more_bytes,
        rounds_ms=spreads,
        real_ms=spreads[len(spreads) // 2],
        simulated_ms=Spread(count=9, mean=50.0, p50=40.0, p99=100.0, max=100.0),
        within_25=1.0,
        disk=DISK,
        disks=(DISK, DISK),
        costs=ComputeCosts(),
        others=(0.0, *(others for _ in spreads)),
    )


def test_what_slows_other_queries_each_round_is_left_out_and_what_slows_same_one_is_not() -> None:
    rounds = [(900.0, 10.0, 500.0, 12.0), (880.0, 11.0, 13.0, 700.0), (910.0, 600.0, 12.0, 11.0)]
    assert typical_us(rounds) == [900.0, 11.0, 13.0, 12.0]


@pytest.mark.parametrize(("p99_ms", "agrees"), [(79, False), (80, True), (130, True), (134, False)])
def test_latencies_agree_within_a_quarter_of_the_real_ones(p99_ms: float, agrees: bool) -> None:
    found = rounds_of(p99_ms)
    assert found.agrees is agrees
    assert (
        any("latencies differ by more than 25%" in remark for remark in remarks([found]))
        is not agrees
    )


def test_costs_are_of_the_run_that_was_neither_fast_nor_slow() -> None:
    runs = [RealRun(0, (us,), (), (), (), 0, Stopwatch()) for us in (5.0, 900.0, 7.0)]
    assert middle(runs).latency_us == (7.0,)
    assert middle(runs[:2]).latency_us == (5.0,)


def test_the_disk_is_the_median_of_what_was_measured() -> None:
    measured = [[Burst(4096, (us,)), Burst(4096, (us, 2 * us))] for us in (100.0, 5_000.0, 110.0)]
    assert median_bursts(measured) == (Burst(4096, (110.0,)), Burst(4096, (110.0, 220.0)))


def test_one_byte_more_is_a_broken_promise() -> None:
    found = rounds_of(100, more_bytes=1)
    assert not found.agrees
    assert any("BYTES DIFFER" in remark for remark in remarks([found]))


def test_bytes_of_a_published_prefetch_depend_on_time_and_may_differ_by_a_quarter() -> None:
    assert rounds_of(100, way="cagr-best-greedy", more_bytes=25).agrees
    assert not rounds_of(100, way="cagr-best-greedy", more_bytes=26).agrees


def test_a_disturbed_machine_is_told_of() -> None:
    assert rounds_of(100, 100, others=0.11).disturbed == 2
    (remark,) = (
        remark for remark in remarks([rounds_of(100, 100, others=0.11)]) if "disturbed" in remark
    )
    assert "2 of 3 runs" in remark
    assert not any("disturbed" in remark for remark in remarks([rounds_of(100, others=0.1)]))


def test_a_disk_whose_rate_changes_is_told_of() -> None:
    slow = structs.replace(DISK, bytes_per_us=500)
    (remark,) = (
        r for r in remarks([structs.replace(rounds_of(100), disks=(DISK, slow))]) if "disk was" in r
    )
    assert "2.0 times as fast" in remark
