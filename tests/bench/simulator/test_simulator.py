"""The simulator: costs by hand, the rules of its disk, bytes that do not depend on any speed."""

from __future__ import annotations

import random

import pytest

from bench.data.trace import Clusters, Trace, cut, soonest
from bench.micro.disk import DiskRate
from bench.simulator.calibration import disk_costs
from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts, SimulatedDisk
from bench.simulator.reads import SimulatedReads
from bench.simulator.simulation import ClusterMajorSimulation, SimulationOutcome
from schemas.record import ClusterId
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.limits import ClusterMajorLimits

A, B, C, D = (ClusterId(c) for c in range(4))
PAGE = 4096
COSTS = ComputeCosts(task_us=0, row_ns=120, product_ns=10, turn_us=100, join_us=7, arrival_us=50)
DISKS = {
    "an SSD": DiskCosts(overhead_us=80, bytes_per_us=1000, together_bytes=1 << 20),
    "a slow disk": DiskCosts(overhead_us=2_000, bytes_per_us=20),
    "memory": DiskCosts(overhead_us=1, bytes_per_us=50_000, together_bytes=16 << 20),
}


def small_trace(
    seed: int, *, windows: int = 40, window: int = 6, nlist: int = 40, nprobe: int = 4
) -> Trace:
    """Favourites and a long tail, clusters of 1 to 30 rows."""
    rng = random.Random(seed)
    popularity = [1 / (1 + rank) for rank in range(nlist)]
    rng.shuffle(popularity)
    queries = []
    for _ in range(windows * window):
        drawn = dict.fromkeys(rng.choices(range(nlist), popularity, k=3 * nprobe))
        queries.append(tuple(map(ClusterId, drawn))[:nprobe])
    rows = {ClusterId(c): rng.randint(1, 30) for c in range(nlist)}
    return Trace(
        windows=cut(queries, window),
        size_bytes={c: PAGE * n for c, n in rows.items()},
        row_count=rows,
    )


def reads_of(trace: Trace, disk: DiskCosts) -> SimulatedReads:
    return SimulatedReads(
        trace.size_bytes, SimulatedDisk(disk), in_flight_bytes=16 * PAGE, ahead_max=1
    )


def simulate(
    trace: Trace,
    disk: DiskCosts,
    *,
    budget_share: float = 0.3,
    read_ahead_share: float = 0.1,
    prefetch_share: float = 0.1,
) -> SimulationOutcome:
    budget = int(budget_share * trace.total_bytes) // PAGE * PAGE
    planner = ClusterMajorPlanner(
        ClusterMajorLimits(
            budget_bytes=budget,
            read_ahead_bytes=int(read_ahead_share * budget),
            prefetch_bytes=int(prefetch_share * budget),
            overtake_us=10**9,
        ),
        trace.size_bytes,
        FarthestNextUse(),
    )
    return ClusterMajorSimulation(
        trace=trace,
        planner=planner,
        reads=reads_of(trace, disk),
        costs=COSTS,
    ).run()


def test_a_cluster_is_foreseen_in_the_first_window_that_wants_it() -> None:
    assert soonest([[(A, B), (C,)], [(B, D)], [(A,)]]) == {A: 1, B: 1, C: 1, D: 2}


def test_the_latency_of_a_lone_query_is_the_sum_of_its_costs() -> None:
    query: Clusters = (A, B)
    trace = Trace(windows=((query,),), size_bytes={A: PAGE, B: 2 * PAGE}, row_count={A: 10, B: 20})
    disk = DiskCosts(overhead_us=100, bytes_per_us=PAGE / 100)
    outcome = simulate(trace, disk, budget_share=1, read_ahead_share=1, prefetch_share=0)
    # Joined at 7; A is read by 207 and B by 407, and A is scored meanwhile. A row costs 0.13 us.
    assert list(outcome.latency_us) == [pytest.approx(407 + 2.6 + 100)]
    assert (outcome.bytes_read, outcome.reads) == (3 * PAGE, (A, B))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("prefetch_share", [0.0, 0.1, 0.3])
def test_the_same_clusters_are_read_in_the_same_order_on_every_disk(
    seed: int, prefetch_share: float
) -> None:
    trace = small_trace(seed, windows=20)
    reads = {
        name: simulate(trace, disk, prefetch_share=prefetch_share).reads
        for name, disk in DISKS.items()
    }
    assert len(set(reads.values())) == 1, {name: len(found) for name, found in reads.items()}


def test_a_disk_that_serves_in_order_ends_each_read_with_its_overhead() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=100, bytes_per_us=10))
    disk.give(1, 1000)
    disk.give(2, 500)
    assert disk.next_us() == 100, "the last byte of the first, before its overhead"
    disk.advance(199)
    assert disk.take_ended() == []
    disk.advance(200)
    assert disk.take_ended() == [1]
    disk.advance(250)
    assert disk.take_ended() == [2]
    assert disk.next_us() is None


def test_reads_in_service_share_the_rate_and_the_next_one_waits() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=0, bytes_per_us=10, together_bytes=2000))
    for token in (1, 2, 3):
        disk.give(token, 1000)
    disk.advance(199)
    assert disk.take_ended() == []
    disk.advance(200)
    assert disk.take_ended() == [1, 2]
    disk.advance(300)
    assert disk.take_ended() == [3]


def test_demands_go_before_prefetches_and_a_promoted_prefetch_is_a_demand() -> None:
    trace = Trace(windows=(), size_bytes=dict.fromkeys((A, B, C, D), 16 * PAGE), row_count={A: 1})
    reads = reads_of(trace, DiskCosts(overhead_us=0, bytes_per_us=PAGE))
    reads.begin(A, is_prefetch=False)
    reads.begin(B, is_prefetch=True)
    reads.begin(C, is_prefetch=True)
    reads.begin(D, is_prefetch=False)
    reads.promote(C)
    reads.advance(16)
    assert reads.take_ended() == [A]
    reads.advance(1_000)
    assert reads.take_ended() == [D, C, B]
    assert reads.bytes_read == 64 * PAGE


def test_the_disk_reaches_the_rates_that_were_measured() -> None:
    alone = DiskRate(depth=1, reads=10, bytes_read=10 * 1000, duration_us=2_000)
    together = DiskRate(depth=4, reads=40, bytes_read=40 * 1000, duration_us=4_000)
    costs = disk_costs([alone, together])
    assert costs == DiskCosts(overhead_us=100, bytes_per_us=10, together_bytes=4_000)
