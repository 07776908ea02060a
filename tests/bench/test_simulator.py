"""The simulator: costs by hand, the rules of its disk, and bytes that do not depend on how fast
anything is.
"""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from bench.baselines.read_planner import ReadLimits, ReadPlanner
from bench.simulator.arrivals import Arrivals, ClosedLoop, OpenLoop, poisson_due_us, soonest
from bench.simulator.calibration import not_negative
from bench.simulator.cluster_major import ClusterMajorSimulation
from bench.simulator.costs import ComputeCosts
from bench.simulator.disk import DiskCosts
from bench.simulator.disturbance import OthersShare
from bench.simulator.outcome import Outcome
from bench.simulator.query_by_query import QueryByQuerySimulation
from bench.simulator.trace import Clusters, Trace, cut, horizons
from bench.simulator.ways import WAYS
from schemas.record import ClusterId
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.eviction.policies import POLICY_NAMES, PolicyName, make_policy
from searcher.plan.limits import ClusterMajorLimits
from tests.bench.simulated import COSTS, PAGE, A, B, memory

DISKS = {
    "an SSD": DiskCosts(overhead_us=80, bytes_per_us=1000, together_bytes=1 << 20),
    "a slow disk": DiskCosts(overhead_us=2_000, bytes_per_us=20),
    "memory": DiskCosts(overhead_us=1, bytes_per_us=50_000, together_bytes=16 << 20),
    "a disk that serves little at a time": DiskCosts(
        overhead_us=300, bytes_per_us=300, together_bytes=8192
    ),
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
        size_bytes={c: 4096 * n for c, n in rows.items()},
        row_count=rows,
    )


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
        memory=lambda on_end: memory(
            trace.size_bytes, disk, on_end, budget_bytes=budget, costs=costs
        ),
        costs=costs,
    ).run()


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
    loop = OpenLoop(
        trace, due_us=np.array([10.0, 20, 30, 40]), window=2, windows_ahead=4, in_hand_max=3
    )
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
    # Joined at 7, A is asked for at 10 and there at 210, B 200 later: A is scored meanwhile. A row
    # costs 0.13 us.
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
    assert outcome.hits + outcome.misses == sum(
        len(query) for window in trace.windows for query in window
    )
    assert outcome.bytes_read <= sum(
        trace.size_bytes[c] for clusters in trace.wanted() for c in clusters
    )
    assert outcome.duration_us >= outcome.disk_busy_us


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("prefetch_share", [0.0, 0.1, 0.3])
def test_in_a_closed_loop_the_same_clusters_are_read_in_the_same_order_whatever_the_disk(
    seed: int, prefetch_share: float
) -> None:
    trace = small_trace(seed, windows=20)
    reads = {
        name: simulate(trace, disk, prefetch_share=prefetch_share).reads
        for name, disk in DISKS.items()
    }
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


def one_by_one(
    trace: Trace, disk: DiskCosts, *, way: str = "edgerag", budget_share: float = 0.6
) -> Outcome:
    budget = int(budget_share * trace.total_bytes) // PAGE * PAGE
    policy = make_policy(
        "edgerag", size_bytes=trace.size_bytes, budget_bytes=budget, read_latency_us={}
    )
    limits = ReadLimits(
        budget_bytes=budget, demand_reads_max=16, prefetch_reads_max=2, prefetch=WAYS[way].prefetch
    )
    return QueryByQuerySimulation(
        trace=trace,
        groups=WAYS[way].groups,
        planner=ReadPlanner(limits, trace.size_bytes, policy),
        memory=lambda on_end: memory(trace.size_bytes, disk, on_end, budget_bytes=budget),
        costs=COSTS,
    ).run()


def test_one_query_after_the_other_takes_the_sum_of_its_costs() -> None:
    trace = Trace(
        windows=(((A, B), (A,)),), size_bytes={A: PAGE, B: PAGE}, row_count={A: 10, B: 20}
    )
    outcome = one_by_one(trace, DiskCosts(overhead_us=100, bytes_per_us=PAGE / 300), budget_share=1)
    # Joined at 7; A is asked for at 10 and there at 410, B at 710. The second query finds A in
    # memory.
    first_us = 710 + 2 + 2.6 + 100
    assert list(outcome.latency_us) == [
        pytest.approx(first_us),
        pytest.approx(first_us + 1.3 + 100),
    ]
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
    read = {
        name: sorted(one_by_one(trace, disk, way="cagr-greedy").reads)
        for name, disk in DISKS.items()
    }
    assert len({tuple(found) for found in read.values()}) == 1
