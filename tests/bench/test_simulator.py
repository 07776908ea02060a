"""The simulator: costs by hand, the rules of its disk, and bytes that do not depend on how fast anything is."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from bench.simulator.arrivals import Arrivals, ClosedLoop, OpenLoop, poisson_due_us, soonest
from bench.simulator.calibration import not_negative
from bench.simulator.cluster_major import ClusterMajorSimulation
from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts, SimulatedDisk
from bench.simulator.disk_calibration import BURSTS, Burst, fit_disk
from bench.simulator.disturbance import OthersShare
from bench.simulator.memory import OnEnd, Shape, SimulatedMemory
from bench.simulator.outcome import Outcome
from bench.simulator.query_by_query import QueryByQuerySimulation
from bench.simulator.trace import Clusters, Trace, cut, horizons
from bench.simulator.ways import WAYS
from schemas.record import ClusterId
from searcher.cache.policies import POLICY_NAMES, PolicyName, make_policy
from searcher.plan.cluster_major import ClusterMajorLimits, ClusterMajorPlanner
from searcher.plan.reads import ReadLimits, ReadPlanner

A, B, C, D = (ClusterId(c) for c in range(4))
PAGE = 4096
COSTS = ComputeCosts(
    cluster_us=0,
    piece_us=0,
    row_ns=120,
    product_ns=10,
    turn_us=100,
    join_us=7,
    read_us=3,
    wake_us=2,
    handover_us=0,
    arrival_us=50,
    block_us=0,
    verify_ns=0,
    block_piece_us=0,
)
DISKS = {
    "an SSD": DiskCosts(overhead_us=80, bytes_per_us=1000, together_bytes=1 << 20),
    "a slow disk": DiskCosts(overhead_us=2_000, bytes_per_us=20),
    "memory": DiskCosts(overhead_us=1, bytes_per_us=50_000, together_bytes=16 << 20),
    "a disk that serves little at a time": DiskCosts(overhead_us=300, bytes_per_us=300, together_bytes=8192),
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
    budget = int(budget_share * trace.total_bytes) // PAGE * PAGE
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
        memory=lambda on_end: memory(trace.size_bytes, disk, on_end, budget_bytes=budget, costs=costs),
        costs=costs,
    ).run()


def memory(
    size_bytes: Mapping[ClusterId, int],
    disk: DiskCosts,
    on_end: OnEnd,
    *,
    budget_bytes: int = 1 << 24,
    costs: ComputeCosts = COSTS,
    depth: int = 16,
    prefetch_depth: int = 2,
) -> SimulatedMemory:
    shape = Shape(budget_bytes, PAGE, PAGE, depth, prefetch_depth)
    return SimulatedMemory(shape=shape, size_bytes=size_bytes, disk=SimulatedDisk(disk), costs=costs, on_end=on_end)


class Reads:
    """Memory whose clusters are of some pages each, and what it told."""

    def __init__(self, disk: DiskCosts, *pages: int, costs: ComputeCosts = COSTS, **shape: int) -> None:
        sizes = {ClusterId(cluster): PAGE * count for cluster, count in enumerate(pages)}
        self.ended: list[tuple[float, ClusterId, bool]] = []
        self.memory = memory(sizes, disk, self._end, costs=costs, **shape)
        self._now_us = 0.0

    def until(self, now_us: float) -> list[tuple[float, ClusterId, bool]]:
        while (moment_us := self.memory.next_us()) is not None and moment_us <= now_us:
            self._now_us = moment_us
            self.memory.advance(moment_us, is_asleep=True)
        self._now_us = now_us
        self.memory.advance(now_us, is_asleep=True)
        return self.ended

    def _end(self, cluster: ClusterId, is_cancelled: bool) -> None:
        self.ended.append((self._now_us, cluster, is_cancelled))


# ---- the disk


def test_a_disk_that_serves_in_order_ends_reads_one_after_the_other_each_with_its_overhead() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=100, bytes_per_us=10))
    disk.give(1, 1000)
    disk.give(2, 500)
    assert disk.next_us() == 100, "the last byte of the first has come, and nobody has heard of it"
    disk.advance(199)
    assert disk.take_ended() == []
    disk.advance(200)
    assert disk.take_ended() == [1]
    disk.advance(250)
    assert disk.take_ended() == [2]
    assert disk.next_us() is None and disk.busy_us == 150


def test_reads_that_are_served_side_by_side_share_the_rate_and_the_next_one_waits_for_room() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=0, bytes_per_us=10, together_bytes=2000))
    for token in (1, 2, 3):
        disk.give(token, 1000)
    disk.advance(199)
    assert disk.take_ended() == []
    disk.advance(200)
    assert disk.take_ended() == [1, 2]
    disk.advance(300)
    assert disk.take_ended() == [3]


def test_a_read_that_joins_another_slows_it_down() -> None:
    disk = SimulatedDisk(DiskCosts(overhead_us=0, bytes_per_us=10, together_bytes=10_000))
    disk.give(1, 1000)
    disk.advance(50)
    disk.give(2, 1000)  # 500 bytes of the first are left: both take 100 us for as many
    disk.advance(150)
    assert disk.take_ended() == [1]
    disk.advance(200)
    assert disk.take_ended() == [2]


@pytest.mark.parametrize("together_bytes", [1, 3 << 17, 1 << 20])
def test_the_fit_finds_the_disk_that_the_bursts_were_measured_on(together_bytes: int) -> None:
    costs = DiskCosts(overhead_us=150, bytes_per_us=1200, together_bytes=together_bytes)
    bursts = []
    for count in BURSTS:
        disk = SimulatedDisk(costs)
        for token in range(count):
            disk.give(token, 1 << 17)
        ended_us = []
        while (moment_us := disk.next_us()) is not None:
            disk.advance(moment_us)
            ended_us += [moment_us] * len(disk.take_ended())
        bursts.append(Burst(1 << 17, tuple(ended_us)))
    found = fit_disk(bursts)
    assert found.overhead_us == pytest.approx(150) and found.bytes_per_us == pytest.approx(1200)
    assert found.together_bytes >> 17 == together_bytes >> 17


# ---- memory and its engine


def test_a_cluster_is_there_when_its_last_block_is_verified() -> None:
    costs = structs.replace(COSTS, block_us=10, block_piece_us=1, verify_ns=1_000)  # 1 us a KiB
    reads = Reads(DiskCosts(overhead_us=100, bytes_per_us=4096), 256 + 2, costs=costs)
    reads.memory.begin_read(A, is_prefetch=False)
    # Blocks of 256 and 2 pages come at 356 and 358; the first is verified until 356 + 11 + 1024, the second is taken up then.
    assert reads.until(1e6) == [(356 + 11 + 1024 + 11 + 8, A, False)]


def test_while_the_engine_verifies_it_hands_nothing_to_the_disk() -> None:
    costs = structs.replace(COSTS, block_us=1_000)
    reads = Reads(DiskCosts(overhead_us=0, bytes_per_us=4096), 10, 10, costs=costs)
    reads.memory.begin_read(A, is_prefetch=False)
    reads.until(500)
    reads.memory.begin_read(B, is_prefetch=False)
    assert reads.until(1e6) == [(1010, A, False), (2020, B, False)]


def test_while_the_search_thread_computes_the_engine_waits_for_the_interpreter_until_that_one_sleeps() -> None:
    reads = Reads(DiskCosts(overhead_us=0, bytes_per_us=4096), 10, 10, costs=structs.replace(COSTS, handover_us=100))
    reads.memory.begin_read(A, is_prefetch=False)
    reads.memory.advance(99)
    reads.memory.advance(150)  # handed over at 100, there at 110, noticed at 210
    reads.memory.begin_read(B, is_prefetch=False)
    assert reads.ended == []
    reads.memory.advance(180)
    assert reads.until(1e6) == [(180, A, False), (190, B, False)], "asleep from 180 on: both are seen to at once"


def test_a_read_waits_for_a_place_with_the_kernel() -> None:
    reads = Reads(DiskCosts(overhead_us=100, bytes_per_us=4096), 10, 10, depth=1)
    reads.memory.begin_read(A, is_prefetch=False)
    reads.memory.begin_read(B, is_prefetch=False)
    assert reads.until(1e6) == [(110, A, False), (220, B, False)]


def test_demands_go_before_prefetches_and_of_those_only_some_are_with_the_kernel() -> None:
    reads = Reads(DiskCosts(overhead_us=0, bytes_per_us=4096), 10, 10, 10, 10, depth=2, prefetch_depth=1)
    for cluster in (A, B):
        reads.memory.begin_read(cluster, is_prefetch=True)
    reads.until(0)  # A begins, B may not
    reads.memory.begin_read(C, is_prefetch=False)
    reads.memory.begin_read(D, is_prefetch=False)
    assert [cluster for _, cluster, _ in reads.until(1e6)] == [A, C, D, B]


def test_a_promoted_prefetch_is_a_demand_and_a_cancelled_one_ends_unless_the_kernel_has_it() -> None:
    reads = Reads(DiskCosts(overhead_us=0, bytes_per_us=4096), 10, 10, 10, 10, depth=1)
    reads.memory.begin_read(A, is_prefetch=True)
    reads.until(0)
    reads.memory.begin_read(B, is_prefetch=True)
    reads.memory.begin_read(C, is_prefetch=False)
    reads.memory.promote(B)
    reads.memory.begin_read(D, is_prefetch=True)
    reads.memory.cancel(D)
    reads.memory.cancel(A)  # too late
    assert reads.until(1e6) == [(0.0, D, True), (10, A, False), (20, C, False), (30, B, False)]
    assert reads.memory.bytes_read == 30 * PAGE


@given(
    pages=st.lists(st.integers(1, 600), min_size=1, max_size=8),
    depth=st.integers(1, 5),
    prefetch_depth=st.integers(1, 5),
    together_bytes=st.sampled_from([1, 1 << 20, 4 << 20]),
    pauses_us=st.lists(st.integers(0, 200), min_size=8, max_size=8),
)
def test_every_read_ends_and_never_sooner_than_the_disk_allows(
    pages: list[int], depth: int, prefetch_depth: int, together_bytes: int, pauses_us: list[int]
) -> None:
    disk = DiskCosts(overhead_us=7, bytes_per_us=4096, together_bytes=together_bytes)
    reads = Reads(disk, *pages, depth=depth, prefetch_depth=prefetch_depth)
    now_us = 0.0
    for cluster, pause_us in zip(range(len(pages)), pauses_us, strict=False):
        reads.memory.begin_read(ClusterId(cluster), is_prefetch=bool(cluster % 2))
        now_us += pause_us
        reads.until(now_us)
    ended = reads.until(1e9)
    assert sorted((cluster, is_cancelled) for _, cluster, is_cancelled in ended) == [
        (cluster, False) for cluster in range(len(pages))
    ]
    assert reads.memory.disk_busy_us == pytest.approx(sum(pages))
    assert max(end_us for end_us, *_ in ended) >= sum(pages) + 7 - 1e-6


# ---- costs


def test_what_columns_cost_is_found_and_never_less_than_nothing() -> None:
    rng = np.random.default_rng(0)
    measured = rng.random((200, 3)) * (1, 1_000, 1_000_000)
    found = not_negative(measured, measured @ (50.0, 0.0, 0.001) - 0.02 * measured[:, 1])
    assert found[1] == 0 and found[0] > 0 and found[2] == pytest.approx(0.001, rel=0.1)


def test_what_others_take_of_the_cpus_is_a_share_and_our_own_work_is_not_in_it() -> None:
    with OthersShare() as cpu:
        deadline_s = time.process_time() + 0.05
        while time.process_time() < deadline_s:
            pass
    assert 0 <= cpu.share <= 1


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
    trace = Trace(windows=((query,),), size_bytes={A: PAGE, B: 2 * PAGE}, row_count={A: 10, B: 20})
    disk = DiskCosts(overhead_us=100, bytes_per_us=PAGE / 100)
    outcome = simulate(trace, disk, budget_share=1, read_ahead_share=1, prefetch_share=0)
    # Joined at 7, A is asked for at 10 and there at 210, B 200 later: A is scored meanwhile. A row costs 0.13 us.
    scoring_a, scoring_b = 1.3, 2.6
    assert 210 + 2 + scoring_a + 100 < 410
    assert list(outcome.latency_us) == [pytest.approx(410 + 2 + scoring_b + 100)]
    assert (outcome.bytes_read, outcome.hits, outcome.misses, outcome.ahead) == (3 * PAGE, 0, 2, 0)


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


# ---- query by query


def one_by_one(trace: Trace, disk: DiskCosts, *, way: str = "edgerag", budget_share: float = 0.6) -> Outcome:
    budget = int(budget_share * trace.total_bytes) // PAGE * PAGE
    policy = make_policy("edgerag", size_bytes=trace.size_bytes, budget_bytes=budget, read_latency_us={})
    limits = ReadLimits(budget_bytes=budget, demand_reads_max=16, prefetch_reads_max=2, prefetch=WAYS[way].prefetch)
    return QueryByQuerySimulation(
        trace=trace,
        groups=WAYS[way].groups,
        planner=ReadPlanner(limits, trace.size_bytes, policy),
        memory=lambda on_end: memory(trace.size_bytes, disk, on_end, budget_bytes=budget),
        costs=COSTS,
    ).run()


def test_one_query_after_the_other_takes_the_sum_of_its_costs() -> None:
    trace = Trace(windows=(((A, B), (A,)),), size_bytes={A: PAGE, B: PAGE}, row_count={A: 10, B: 20})
    outcome = one_by_one(trace, DiskCosts(overhead_us=100, bytes_per_us=PAGE / 300), budget_share=1)
    # Joined at 7; A is asked for at 10 and there at 410, B at 710. The second query finds A in memory.
    first_us = 710 + 2 + 2.6 + 100
    assert list(outcome.latency_us) == [pytest.approx(first_us), pytest.approx(first_us + 1.3 + 100)]
    assert (outcome.bytes_read, outcome.hits, outcome.misses) == (2 * PAGE, 1, 2)


@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if not way.by_cluster])
def test_every_published_way_answers_every_query_and_what_is_read_adds_up(way: str) -> None:
    trace = small_trace(6)
    outcome = one_by_one(trace, DISKS["an SSD"], way=way)
    assert len(outcome.latency_us) == sum(map(len, trace.windows))
    assert outcome.bytes_read == sum(trace.size_bytes[cluster] for cluster in outcome.reads)
    assert (outcome.ahead > 0) == (WAYS[way].prefetch != "none")


def test_without_prefetching_what_is_read_does_not_depend_on_the_disk() -> None:
    trace = small_trace(7)
    read = {name: sorted(one_by_one(trace, disk, way="cagr-greedy").reads) for name, disk in DISKS.items()}
    assert len({tuple(found) for found in read.values()}) == 1
