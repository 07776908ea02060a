"""Events and actions of the read planner, in few words."""

from __future__ import annotations

from collections.abc import Mapping

from bench.baselines.read_planner import PrefetchMode, ReadLimits, ReadPlanner
from bench.baselines.read_steps import (
    Action,
    Event,
    Grant,
    GroupBegan,
    GroupEnded,
    PrefetchEnded,
    QueryBegan,
    QueryEnded,
    Read,
    ReadEnded,
    ReadFailed,
    Released,
)
from schemas.record import ClusterId
from searcher.plan.eviction.lru import Lru
from searcher.plan.eviction.policy import CachePolicy

A, B, C, D, E, F, G = (ClusterId(c) for c in range(7))
TEN_EACH = dict.fromkeys((A, B, C, D, E, F, G), 10)


def planner_of(
    budget_bytes: int,
    *,
    demand: int = 4,
    prefetch: int = 2,
    sizes: Mapping[ClusterId, int] = TEN_EACH,
    policy: CachePolicy | None = None,
    mode: PrefetchMode = "overlapped",
) -> ReadPlanner:
    limits = ReadLimits(
        budget_bytes=budget_bytes,
        demand_reads_max=demand,
        prefetch_reads_max=prefetch,
        prefetch=mode,
    )
    return ReadPlanner(limits, sizes, policy or Lru())


def group(*queries: tuple[ClusterId, ...], then: tuple[ClusterId, ...] = ()) -> GroupBegan:
    return GroupBegan(queries=queries, next_query=then)


def demand(cluster: ClusterId) -> Read:
    return Read(cluster=cluster, purpose="demand")


def prefetch(cluster: ClusterId) -> Read:
    return Read(cluster=cluster, purpose="prefetch")


def used(cluster: ClusterId) -> PrefetchEnded:
    return PrefetchEnded(cluster=cluster, result="used")


def late(cluster: ClusterId) -> PrefetchEnded:
    return PrefetchEnded(cluster=cluster, result="late")


def wasted(cluster: ClusterId) -> PrefetchEnded:
    return PrefetchEnded(cluster=cluster, result="wasted")


def ram(cluster: ClusterId) -> Grant:
    return Grant(cluster=cluster, tier="ram")


def ssd(cluster: ClusterId) -> Grant:
    return Grant(cluster=cluster, tier="ssd")


def query(position: int) -> QueryBegan:
    return QueryBegan(position=position)


def ended(cluster: ClusterId) -> ReadEnded:
    return ReadEnded(cluster=cluster)


def failed(cluster: ClusterId) -> ReadFailed:
    return ReadFailed(cluster=cluster)


def released(cluster: ClusterId) -> Released:
    return Released(cluster=cluster)


def run(planner: ReadPlanner, *events: Event) -> list[Action]:
    """All actions of these events; the books are checked after each."""
    actions: list[Action] = []
    for event in events:
        actions += planner.step(event)
        planner.check_integrity()
    return actions


def load(planner: ReadPlanner, *clusters: ClusterId) -> None:
    """Makes clusters resident by a group that asks for one after the other."""
    run(planner, group(*((cluster,) for cluster in clusters)))
    for position, cluster in enumerate(clusters):
        if demand(cluster) in run(planner, query(position)):
            run(planner, ended(cluster))
        run(planner, released(cluster), QueryEnded())
    run(planner, GroupEnded())
