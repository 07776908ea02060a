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
    Released,
)
from searcher.plan.eviction.lru import Lru
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.slices import SliceId

A, B, C, D, E, F, G = (SliceId(c) for c in range(7))
TEN_EACH = dict.fromkeys((A, B, C, D, E, F, G), 10)


def planner_of(
    budget_bytes: int,
    *,
    demand: int = 4,
    prefetch: int = 2,
    sizes: Mapping[SliceId, int] = TEN_EACH,
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


def group(*queries: tuple[SliceId, ...], then: tuple[SliceId, ...] = ()) -> GroupBegan:
    return GroupBegan(queries=queries, next_query=then)


def demand(cluster: SliceId) -> Read:
    return Read(cluster=cluster, purpose="demand")


def prefetch(cluster: SliceId) -> Read:
    return Read(cluster=cluster, purpose="prefetch")


def used(cluster: SliceId) -> PrefetchEnded:
    return PrefetchEnded(cluster=cluster, result="used")


def late(cluster: SliceId) -> PrefetchEnded:
    return PrefetchEnded(cluster=cluster, result="late")


def wasted(cluster: SliceId) -> PrefetchEnded:
    return PrefetchEnded(cluster=cluster, result="wasted")


def ram(cluster: SliceId) -> Grant:
    return Grant(cluster=cluster, tier="ram")


def ssd(cluster: SliceId) -> Grant:
    return Grant(cluster=cluster, tier="ssd")


def query(position: int) -> QueryBegan:
    return QueryBegan(position=position)


def ended(cluster: SliceId) -> ReadEnded:
    return ReadEnded(cluster=cluster)


def released(cluster: SliceId) -> Released:
    return Released(cluster=cluster)


def run(planner: ReadPlanner, *events: Event) -> list[Action]:
    """All actions of these events; the books are checked after each."""
    actions: list[Action] = []
    for event in events:
        actions += planner.step(event)
        planner.check_integrity()
    return actions


def load(planner: ReadPlanner, *clusters: SliceId) -> None:
    """Makes clusters resident by a group that asks for one after the other."""
    run(planner, group(*((cluster,) for cluster in clusters)))
    for position, cluster in enumerate(clusters):
        if demand(cluster) in run(planner, query(position)):
            run(planner, ended(cluster))
        run(planner, released(cluster), QueryEnded())
    run(planner, GroupEnded())
