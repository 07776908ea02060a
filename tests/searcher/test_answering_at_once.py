"""A lone query that needs no plan: the same results without one, and only then."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest

from schemas.record import ClusterId
from searcher.execution import cluster_major
from searcher.execution.cluster_major import ClusterMajor
from searcher.plan import substage
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cluster_steps import Action, Event, Joined
from searcher.scoring import lone_scan
from searcher.scoring import pool as scoring_pool
from searcher.scoring.pool import ScoringPool
from searcher.scoring.top_k import TopK
from tests.searcher.executor_rig import Disk, make_disk, questions, running


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return make_disk(tmp_path_factory.mktemp("disk"))


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < until_s, "it did not come about"
        time.sleep(0.001)


def joined(monkeypatch: pytest.MonkeyPatch) -> list[Joined]:
    """What the planner is told of queries that join, from now on."""
    told: list[Joined] = []
    step = ClusterMajorPlanner.step

    def listen(planner: ClusterMajorPlanner, event: Event) -> tuple[Action, ...]:
        if isinstance(event, Joined):
            told.append(event)
        return step(planner, event)

    monkeypatch.setattr(ClusterMajorPlanner, "step", listen)
    return told


@pytest.mark.parametrize("slice_bytes_max", [0, 4096])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_lone_query_whose_clusters_are_in_memory_is_answered_without_a_plan_and_as_exactly(
    disk: Disk, threads: int, slice_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(substage, "LONE_US", 10_000_000)
    monkeypatch.setattr(scoring_pool, "PART_COST_MIN", 4096)
    monkeypatch.setattr(lone_scan, "STRETCH_BYTES_MIN", 8192)
    queries, clusters = questions(disk, 40, 5)
    with running(disk, share=1.2, threads=threads, slice_bytes_max=slice_bytes_max) as here:
        here.read_all(queries[:1])
        bytes_read, told = here.bytes_read(), joined(monkeypatch)
        for number, (query, probes) in enumerate(zip(queries, clusters, strict=True)):
            (key,) = here.join(query[None], [probes])
            found = here.take(1)[key]
            assert found is not None and found.best.rows.tolist() == disk.exact(query, probes)
            assert [(probe.cluster, probe.tier) for probe in found.probes] == [
                (cluster, "ram") for cluster in probes
            ]
            np.testing.assert_array_equal(found.best.clusters, disk.assigned[found.best.rows])
            assert found.bytes_read == found.load_us == 0 and not found.skipped and not found.errors
            requests = here.metrics.registry.get_sample_value(
                "carpool_cluster_requests_total", {"tier": "ram"}
            )
            assert requests == 5 * (number + 1)
        assert not told and here.bytes_read() == bytes_read
        here.join(queries[:2], clusters[:2])
        assert all(found is not None for found in here.take(2).values())
        assert len(told) == 1, "two together need a plan"
        here.join(queries[:1], clusters[:1], next_query=clusters[1])
        here.take(1)
        here.join(queries[:1], clusters[:1])  # forgets what was foreseen
        here.take(1)
        here.join(queries[:1], clusters[:1], horizon=dict.fromkeys(clusters[1], 1))
        here.take(1)
        assert [bool(each.horizon) for each in told] == [False, True, False, True], (
            "what comes next must be told"
        )


def test_a_lone_query_that_is_late_expires_and_one_that_would_take_long_is_planned(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(substage, "LONE_US", 10_000_000)
    queries, clusters = questions(disk, 2, 5)
    with running(disk, share=1.2) as here:
        here.read_all(queries[:1])
        here.join(queries[:1], clusters[:1], deadline_us=1)
        assert list(here.take(1).values()) == [None]
        told = joined(monkeypatch)
        monkeypatch.setattr(cluster_major, "ROWS_MAX", 10)
        (key,) = here.join(queries[1:], clusters[1:])
        found = here.take(1)[key]
        assert (
            len(told) == 1
            and found is not None
            and found.best.rows.tolist() == disk.exact(queries[1], clusters[1])
        )


def test_what_was_read_ahead_is_counted_as_used_by_a_lone_query_too(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(substage, "LONE_US", 10_000_000)
    queries, clusters = questions(disk, 1, 5)
    with running(disk, share=1.2) as here:
        here.read_all(queries)
        here.executor._ahead.add(ClusterId(clusters[0][0]))
        for _ in range(2):
            here.join(queries, clusters)
            here.take(1)
        used = here.metrics.registry.get_sample_value(
            "carpool_prefetches_total", {"result": "used"}
        )
        assert used == 1 and not here.executor._ahead


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores to choose from",
)
@pytest.mark.parametrize("together", [1, 2])
def test_the_search_thread_may_run_on_every_core_while_it_waits(
    disk: Disk, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring_pool, "PART_COST_MIN", 4096)
    narrowed: list[int] = []
    change = os.sched_setaffinity

    def note(thread: int, cores: Collection[int]) -> None:
        if thread in (0, here.thread.native_id):
            narrowed.append(len(cores))
        change(thread, cores)

    monkeypatch.setattr(os, "sched_setaffinity", note)
    monkeypatch.setattr(substage, "LONE_US", 10_000_000)
    queries, clusters = questions(disk, 2, 5)
    with running(disk, share=1.2) as here:
        here.read_all(queries[:1])
        whole, thread = os.sched_getaffinity(0), here.thread.native_id
        assert thread is not None
        monkeypatch.setattr(
            substage.SubstageBudget,
            "budget_us_for",
            lambda budget, count: 10_000_000 if count < 2 else 0,
        )
        for _ in range(5):
            wait_until(lambda: os.sched_getaffinity(thread) == whole)
            narrowed.clear()
            here.join(queries[:together], clusters[:together])
            here.take(together)
            wait_until(lambda: os.sched_getaffinity(thread) == whole)
            turns = len(narrowed) // 2
            assert narrowed == [1, len(whole)] * turns
            assert turns == 1 if together == 1 else turns > 1, "sub-stages are of one cluster each"


def test_the_time_of_a_query_that_is_answered_at_once_is_no_overhead_of_sub_stages(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(substage, "LONE_US", 10_000_000)
    overheads_us: list[int] = []
    monkeypatch.setattr(
        substage.SubstageBudget, "scheduled", lambda budget, took_us: overheads_us.append(took_us)
    )
    best, finish = ScoringPool.best, ClusterMajor._finish
    at_once: list[int] = []

    def slow(pool: ScoringPool, *asked: Any) -> TopK:
        time.sleep(0.5)
        at_once.append(1)
        return best(pool, *asked)

    def then_one_more(executor: ClusterMajor, action: Any, done: Any) -> None:
        finish(executor, action, done)
        if not executor._queries and not at_once:
            here.join(queries[2:], clusters[2:])

    monkeypatch.setattr(ScoringPool, "best", slow)
    monkeypatch.setattr(ClusterMajor, "_finish", then_one_more)
    queries, clusters = questions(disk, 3, 5)
    with running(disk, share=1.2) as here:
        at_once.append(0)
        here.read_all(queries[:1])
        at_once.clear()
        overheads_us.clear()
        here.join(queries[:2], clusters[:2])
        assert all(found is not None for found in here.take(3).values())
        here.executor.stop()
        here.thread.join(10)
    assert at_once == [1] and overheads_us and max(overheads_us) < 500_000
