"""The simulator: costs by hand, the rules of its disk, and bytes that do not depend on how fast anything is."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulator.arrivals import Arrivals, ClosedLoop, OpenLoop, poisson_due_us, soonest
from bench.simulator.cluster_major import ClusterMajorSimulation
from bench.simulator.costs import ROW_COST, ComputeCosts
from bench.simulator.disk import DiskCosts, SimulatedDisk
from bench.simulator.outcome import Outcome
from bench.simulator.trace import Clusters, Trace, cut, horizons
from schemas.record import ClusterId
from searcher.cache.policies import POLICY_NAMES, PolicyName, make_policy
from searcher.plan.cluster_major import ClusterMajorLimits, ClusterMajorPlanner

A, B, C, D = (ClusterId(c) for c in range(4))
COSTS = ComputeCosts(
    work_ns=10.0, cluster_us=0, turn_us=100.0, join_us=7.0, read_us=3.0, event_us=2.0, answer_us=5.0, arrival_us=50.0
)
DISKS = {
    "an SSD": DiskCosts(overhead_us=80, bytes_per_us=1000),
    "a slow disk": DiskCosts(overhead_us=2_000, bytes_per_us=20),
    "memory": DiskCosts(overhead_us=1, bytes_per_us=50_000, depth=64),
    "one read at a time": DiskCosts(overhead_us=300, bytes_per_us=300, depth=1, prefetch_depth=1),
}


def small_trace(seed: int, *, windows: int = 40, window: int = 6, nlist: int = 40, nprobe: int = 4) -> Trace:
    """Favourites and a long tail, clusters of 1 to 30 rows."""
    rng = random.Random(seed)
    popularity = [1 / (1 + rank) for rank in range(nlist)]
    rng.shuffle(popularity)
    queries = []
    for _ in range(windows * window):
        drawn = dict.fromkeys(rng.choices(range(nlist), popularity, k=3 * nprobe))
        queries.append(tuple(map(ClusterId, drawn))[:nprobe])
    rows = {ClusterId(c): rng.randint(1, 30) for c in range(nlist)}
    return Trace(windows=cut(queries, window), size_bytes={c: 4096 * n for c, n in rows.items()}, row_count=rows)


def simulate(
    trace: Trace,
    disk: DiskCosts,
    *,
    budget_share: float = 0.3,
    read_ahead_share: float = 0.1,
    prefetch_share: float = 0.1,
    policy: PolicyName = "farthest_next_use",
    arrivals: Arrivals | None = None,
    costs: ComputeCosts = COSTS,
) -> Outcome:
    budget = int(budget_share * trace.total_bytes)
    planner = ClusterMajorPlanner(
        ClusterMajorLimits(
            budget_bytes=budget,
            read_ahead_bytes=int(read_ahead_share * budget),
            prefetch_bytes=int(prefetch_share * budget),
            overtake_us=10**9,
        ),
        trace.size_bytes,
        make_policy(policy, size_bytes=trace.size_bytes, budget_bytes=budget, read_latency_us={}),
    )
    return ClusterMajorSimulation(
        trace=trace,
        planner=planner,
        arrivals=arrivals or ClosedLoop(trace, windows_ahead=4, arrival_us=costs.arrival_us),
        disk=SimulatedDisk(disk),
        costs=costs,
    ).run()


# ---- the disk


def test_blocks_share_one_pipe_and_each_has_its_overhead() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=100, bytes_per_us=10, depth=4, block_bytes_max=1000))
    disk.read(A, 2500, is_prefetch=False)  # 1000, 1000 and 500: through the pipe at 100, 200 and 250
    disk.read(B, 400, is_prefetch=False)  # at 290
    assert disk.next_end_us() == 200
    disk.advance(349)
    assert disk.take_ended() == []
    disk.advance(350)
    assert disk.take_ended() == [(A, False)]
    disk.advance(1000)
    assert disk.take_ended() == [(B, False)] and disk.next_end_us() is None
    assert disk.busy_us == 290


def test_a_read_waits_for_a_place_with_the_kernel() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=100, bytes_per_us=10, depth=1))
    disk.read(A, 1000, is_prefetch=False)
    disk.read(B, 1000, is_prefetch=False)
    disk.advance(400)
    assert disk.take_ended() == [(A, False), (B, False)]
    disk.read(C, 1000, is_prefetch=False)  # the pipe has been idle since 300
    assert disk.next_end_us() == 600


def test_demands_go_before_prefetches_and_of_those_only_some_are_with_the_kernel() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=0, bytes_per_us=10, depth=2, prefetch_depth=1))
    for cluster in (A, B):
        disk.read(cluster, 1000, is_prefetch=True)  # A begins, B may not
    disk.read(C, 1000, is_prefetch=False)
    disk.read(D, 1000, is_prefetch=False)
    disk.advance(1000)
    assert [cluster for cluster, _ in disk.take_ended()] == [A, C, D, B]


def test_a_promoted_prefetch_is_a_demand_and_a_cancelled_one_ends_unless_the_kernel_has_it() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=0, bytes_per_us=10, depth=1))
    disk.read(A, 1000, is_prefetch=True)
    disk.read(B, 1000, is_prefetch=True)
    disk.read(C, 1000, is_prefetch=False)
    disk.promote(B)
    disk.read(D, 1000, is_prefetch=True)
    disk.cancel(D)
    disk.cancel(A)  # too late
    assert disk.take_ended() == [(D, True)]
    disk.advance(1000)
    assert disk.take_ended() == [(A, False), (C, False), (B, False)]


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=12),
    depth=st.integers(1, 5),
    prefetch_depth=st.integers(1, 5),
    steps=st.lists(st.integers(0, 200), max_size=12),
)
def test_every_read_ends_and_never_sooner_than_the_pipe_allows(
    sizes: list[int], depth: int, prefetch_depth: int, steps: list[int]
) -> None:
    costs = DiskCosts(overhead_us=7, bytes_per_us=10, depth=depth, prefetch_depth=prefetch_depth, block_bytes_max=1000)
    disk, now, ended = SimulatedDisk(costs), 0.0, []
    for cluster, size in enumerate(sizes):
        disk.read(ClusterId(cluster), size, is_prefetch=bool(cluster % 2))
        now += steps[cluster] if cluster < len(steps) else 0
        disk.advance(now)
        ended += disk.take_ended()
    while (end_us := disk.next_end_us()) is not None:
        now = max(now, end_us)
        disk.advance(now)
        ended += disk.take_ended()
    assert sorted(ended) == [(cluster, False) for cluster in range(len(sizes))]
    assert disk.busy_us == pytest.approx(sum(sizes) / 10)
    assert now >= sum(sizes) / 10 + 7 - 1e-6


# ---- what arrives


def test_what_is_foreseen_is_what_the_trace_holds() -> None:
    trace = small_trace(1)
    for number, horizon in enumerate(horizons(trace.wanted(), 4)):
        assert soonest(trace.windows[number + 1 : number + 5]) == horizon


def test_in_a_closed_loop_one_window_is_outstanding_and_all_later_ones_are_known() -> None:
    trace = small_trace(2, windows=3)
    loop = ClosedLoop(trace, windows_ahead=4, arrival_us=50)
    first = loop.take(0, 0)
    assert first is not None and first.horizon == soonest(trace.windows[1:3])
    assert loop.take(10, 3) is None and loop.next_us() is None
    assert loop.take(100, 0) is None and loop.next_us() == 150
    second = loop.take(160, 0)
    assert second is not None and [arrived_us for _, arrived_us, _ in second.queries] == [150.0] * 6


def test_in_an_open_loop_queries_arrive_whether_or_not_others_are_answered() -> None:
    trace = small_trace(3, windows=2, window=2)
    loop = OpenLoop(trace, due_us=np.array([10.0, 20, 30, 40]), window=2, windows_ahead=4, in_hand_max=3)
    assert loop.take(5, 0) is None and loop.next_us() == 10
    arrived = loop.take(35, 0)
    assert arrived is not None and [number for number, _, _ in arrived.queries] == [0, 1]
    assert arrived.horizon == soonest([[trace.windows[1][0]]]), "the third waits behind"
    assert loop.take(45, 3) is None and loop.next_us() is None, "three are in hand"
    last = loop.take(45, 2)
    assert last is not None and [number for number, _, _ in last.queries] == [2]


# ---- whole runs


def test_the_latency_of_a_lone_query_is_the_sum_of_its_costs() -> None:
    query: Clusters = (A, B)
    trace = Trace(windows=((query,),), size_bytes={A: 1000, B: 2000}, row_count={A: 10, B: 20})
    disk = DiskCosts(overhead_us=100, bytes_per_us=10)
    outcome = simulate(trace, disk, budget_share=1, read_ahead_share=1, prefetch_share=0)
    # Joined at 7, A is asked for at 10 and there at 210, B 200 later: A is scored meanwhile. A row costs 0.01 us times 13.
    scoring_a, scoring_b = (10 * (ROW_COST + 1) * 0.01, 20 * (ROW_COST + 1) * 0.01)
    assert 210 + 2 + scoring_a + 100 < 410
    assert list(outcome.latency_us) == [pytest.approx(410 + 2 + scoring_b + 5)]
    assert (outcome.bytes_read, outcome.hits, outcome.misses, outcome.ahead) == (3000, 0, 2, 0)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_answers_every_query_and_what_is_read_adds_up(policy: PolicyName) -> None:
    trace = small_trace(4)
    outcome = simulate(trace, DISKS["an SSD"], policy=policy)
    assert len(outcome.latency_us) == sum(map(len, trace.windows))
    assert outcome.bytes_read == sum(trace.size_bytes[cluster] for cluster in outcome.reads)
    assert outcome.hits + outcome.misses == sum(len(query) for window in trace.windows for query in window)
    assert outcome.bytes_read <= sum(trace.size_bytes[c] for clusters in trace.wanted() for c in clusters)
    assert outcome.duration_us >= outcome.disk_busy_us


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("prefetch_share", [0.0, 0.1, 0.3])
def test_in_a_closed_loop_the_same_clusters_are_read_in_the_same_order_whatever_the_disk(
    seed: int, prefetch_share: float
) -> None:
    trace = small_trace(seed, windows=20)
    reads = {name: simulate(trace, disk, prefetch_share=prefetch_share).reads for name, disk in DISKS.items()}
    assert len(set(reads.values())) == 1, {name: len(found) for name, found in reads.items()}


def test_an_open_loop_within_the_disks_reach_has_no_backlog_and_beyond_it_has_one() -> None:
    trace = small_trace(5)
    count = sum(map(len, trace.windows))

    def p99_ms(rate_per_s: float) -> float:
        due_us = poisson_due_us(count, rate_per_s, seed=1)
        loop = OpenLoop(trace, due_us=due_us, window=6, windows_ahead=4, in_hand_max=12)
        return simulate(trace, DISKS["an SSD"], arrivals=loop).latency_ms.p99

    assert p99_ms(50) < 5 < p99_ms(50_000)
