"""The planner of reads under random events, against simple models of memory and caches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.baselines.read_planner import PrefetchMode, ReadLimits, ReadPlanner
from bench.baselines.read_steps import (
    Action,
    Event,
    Evict,
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
from searcher.plan.eviction.edgerag import EdgeRag
from searcher.plan.eviction.lru import Lru
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.slices import SliceId

CLUSTERS = [SliceId(c) for c in range(10)]
LATENCY_US = {c: 50 + (c * 37) % 100 for c in CLUSTERS}
POLICIES: dict[str, Callable[[], CachePolicy]] = {
    "lru": Lru,
    "edgerag": lambda: EdgeRag(LATENCY_US),
}
Queries = tuple[tuple[SliceId, ...], ...]


@dataclass
class Memory:
    """What memory contains after the planner's actions. Knows no plans, pins or policies."""

    budget_bytes: int
    size_bytes: dict[SliceId, int]
    resident: set[SliceId] = field(default_factory=set)
    reading: dict[SliceId, str] = field(default_factory=dict)
    asked: set[SliceId] = field(default_factory=set)  # by the current query, not granted
    leased: set[SliceId] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def used_bytes(self) -> int:
        return sum(self.size_bytes[c] for c in [*self.resident, *self.reading])

    def before(self, event: Event) -> None:
        match event:
            case ReadEnded():
                del self.reading[event.cluster]
                self.resident.add(event.cluster)
            case Released():
                self.leased.remove(event.cluster)
            case QueryEnded() | GroupEnded() | GroupBegan():
                self.asked, self.leased = set(), set()
            case _:
                pass

    def do(self, action: Action) -> None:
        match action:
            case Evict():
                assert action.cluster not in self.leased, "evicted under a reader"
                self.resident.remove(action.cluster)
                self.counts["evicted"] += 1
            case Read():
                assert action.cluster not in self.resident | self.reading.keys(), "read twice"
                if action.purpose == "demand":
                    assert action.cluster in self.asked
                self.reading[action.cluster] = action.purpose
                self.counts[action.purpose] += 1
                assert self.used_bytes() <= self.budget_bytes, "the budget is overdrawn"
            case Grant():
                assert action.cluster in self.resident
                self.asked.remove(action.cluster)
                self.leased.add(action.cluster)
                self.counts[action.tier] += 1
            case PrefetchEnded():
                self.counts[action.result] += 1


@dataclass
class World:
    """A planner, the simple memory, and the events that may happen next."""

    planner: ReadPlanner
    memory: Memory
    limits: ReadLimits
    queries: Queries = ()
    position: int = -1
    next_clusters: tuple[SliceId, ...] = ()

    def tell(self, event: Event) -> tuple[Action, ...]:
        if isinstance(event, QueryBegan):
            self.memory.asked, self.memory.leased = set(self.queries[event.position]), set()
            self.position = event.position
        self.memory.before(event)
        asked = set(self.memory.asked)
        actions = self.planner.step(event)
        for action in actions:
            self.memory.do(action)
        self.check(asked, actions)
        return actions

    def check(self, asked: set[SliceId], actions: tuple[Action, ...]) -> None:
        memory = self.memory
        self.planner.check_integrity()
        assert self.planner.residents() == memory.resident
        assert self.planner.used_bytes == memory.used_bytes() <= self.limits.budget_bytes
        assert self.planner.reading_bytes == sum(memory.size_bytes[c] for c in memory.reading)
        by_purpose = Counter(memory.reading.values())
        assert by_purpose["demand"] <= self.limits.demand_reads_max
        assert by_purpose["prefetch"] <= self.limits.prefetch_reads_max
        prefetched = [a.cluster for a in actions if isinstance(a, Read) and a.purpose == "prefetch"]
        if prefetched:
            assert not memory.asked, "read ahead while the query lacked something"
            assert set(prefetched) <= set(self.next_clusters)
            assert self.limits.prefetch != "none"
        if prefetched and self.limits.prefetch == "overlapped":
            evicted = {a.cluster for a in actions if isinstance(a, Evict)}
            if not asked:
                still_wanted = {
                    c for q in self.queries[self.position + 1 :] for c in q
                } | memory.leased
                assert not evicted & still_wanted, "a prefetch evicted what the group wants"
                assert not evicted & set(self.next_clusters), (
                    "a prefetch evicted what the next group wants"
                )
        # Nobody is stuck: who still lacks a cluster waits for a read, or holds what its scoring
        # will free.
        assert not memory.asked or memory.reading or memory.leased
        # A demand never waits for the bytes of a prefetch alone.
        is_guarded = self.limits.prefetch == "overlapped"
        if is_guarded and memory.asked - memory.reading.keys() and not memory.leased:
            assert any(
                purpose == "demand" or c in memory.asked for c, purpose in memory.reading.items()
            )

    def finish_query(self, rng: random.Random) -> None:
        """Lets reads end in any order and clusters be scored until the query has everything."""
        memory = self.memory
        while memory.asked or memory.leased:
            if memory.leased and (not memory.reading or rng.random() < 0.5):
                self.tell(Released(cluster=rng.choice(sorted(memory.leased))))
            else:
                cluster = rng.choice(sorted(memory.reading))
                self.tell(ReadEnded(cluster=cluster))


def world_of(rng: random.Random, policy: str, *, prefetch: PrefetchMode = "overlapped") -> World:
    size_bytes = {c: rng.randint(1, 9) for c in CLUSTERS}
    largest = max(size_bytes.values())
    limits = ReadLimits(
        budget_bytes=rng.randint(largest, 3 * largest + 10),
        demand_reads_max=rng.randint(1, 4),
        prefetch_reads_max=rng.randint(0, 3),
        prefetch=prefetch,
    )
    planner = ReadPlanner(limits, size_bytes, POLICIES[policy]())
    return World(planner, Memory(limits.budget_bytes, size_bytes), limits)


def some_clusters(rng: random.Random, at_most: int = 5) -> tuple[SliceId, ...]:
    return tuple(rng.sample(CLUSTERS, rng.randint(1, at_most)))


def random_event(world: World, rng: random.Random) -> Event | None:
    memory, choices = world.memory, ["group", "end group", "end query", "query", "query"]
    choices += ["read"] * 4 * bool(memory.reading) + ["release"] * 4 * bool(memory.leased)
    match rng.choice(choices):
        case "group":
            world.queries, world.position = (
                tuple(some_clusters(rng) for _ in range(rng.randint(0, 5))),
                -1,
            )
            world.next_clusters = some_clusters(rng) if rng.random() < 0.8 else ()
            return GroupBegan(queries=world.queries, next_query=world.next_clusters)
        case "end group":
            world.queries, world.position = (), -1
            return GroupEnded()
        case "end query":
            return QueryEnded()
        case "query":
            ahead = range(world.position + 1, len(world.queries))
            return QueryBegan(position=rng.choice([ahead[0], rng.choice(ahead)])) if ahead else None
        case "release":
            return Released(cluster=rng.choice(sorted(memory.leased)))
        case _:
            cluster = rng.choice(sorted(memory.reading))
            return ReadEnded(cluster=cluster)


@pytest.mark.parametrize("prefetch", ["none", "after_group", "overlapped"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_accounting_agrees_with_a_simple_memory_after_every_event(
    policy: str, prefetch: PrefetchMode, seed: int
) -> None:
    rng = random.Random(seed)
    world = world_of(rng, policy, prefetch=prefetch)
    for _ in range(120):
        event = random_event(world, rng)
        if event is not None:
            world.tell(event)
    counts, unused = world.memory.counts, len(world.planner._unused)
    ends = counts["used"] + counts["late"] + counts["wasted"] + unused
    assert ends == counts["prefetch"], "every prefetch is accounted for once"


def workload(rng: random.Random) -> list[Queries]:
    return [tuple(some_clusters(rng) for _ in range(rng.randint(1, 5))) for _ in range(12)]


@pytest.mark.parametrize("prefetch", ["after_group", "overlapped"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_is_advised_every_query_gets_every_cluster(
    policy: str, prefetch: PrefetchMode, seed: int
) -> None:
    """`next` true, absent, stale or wrong: what a query is granted is exactly what it asked for."""
    groups = workload(random.Random(seed))
    stale = random.Random(seed + 1)
    advices: dict[str, Callable[[int], tuple[SliceId, ...]]] = {
        "true": lambda n: groups[n + 1][0] if n + 1 < len(groups) else (),
        "absent": lambda _: (),
        "stale": lambda n: groups[max(0, n - 2)][-1],
        "wrong": lambda _: some_clusters(stale),
        "alien": lambda n: (SliceId(500 + n), SliceId(-3)),
    }
    for advice in advices.values():
        rng = random.Random(seed)
        world = world_of(rng, policy, prefetch=prefetch)
        for number, queries in enumerate(groups):
            world.queries, world.position, world.next_clusters = queries, -1, advice(number)
            world.tell(GroupBegan(queries=queries, next_query=world.next_clusters))
            for position, clusters in enumerate(queries):
                before = world.memory.counts["ram"] + world.memory.counts["ssd"]
                world.tell(QueryBegan(position=position))
                world.finish_query(rng)
                assert world.memory.counts["ram"] + world.memory.counts["ssd"] - before == len(
                    set(clusters)
                )
            world.tell(GroupEnded())


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_without_groups_and_advice_it_is_the_plain_cache(policy: str, seed: int) -> None:
    """One query a group, one cluster a query: hits and evictions are those of ten lines of LRU or
    EdgeRAG.
    """
    rng = random.Random(seed)
    trace = [rng.choice(CLUSTERS) for _ in range(200)]
    size_bytes = dict.fromkeys(CLUSTERS, 10)
    limits = ReadLimits(budget_bytes=40, demand_reads_max=2, prefetch_reads_max=2)
    world = World(
        ReadPlanner(limits, size_bytes, POLICIES[policy]()), Memory(40, size_bytes), limits
    )
    resident: list[SliceId] = []  # least recently used first
    asked: Counter[SliceId] = Counter()
    for cluster in trace:
        world.queries, world.position = ((cluster,),), -1
        world.tell(GroupBegan(queries=world.queries))
        hits_before = world.memory.counts["ram"]
        world.tell(QueryBegan(position=0))
        world.finish_query(rng)
        world.tell(GroupEnded())
        asked[cluster] += 1
        assert world.memory.counts["ram"] - hits_before == (cluster in resident)
        if cluster in resident:
            resident.remove(cluster)
        elif len(resident) == 4:
            worst = (
                min(resident, key=lambda c: (LATENCY_US[c] * asked[c], c))
                if policy == "edgerag"
                else resident[0]
            )
            resident.remove(worst)
        resident.append(cluster)
        assert world.planner.residents() == set(resident)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_same_events_bring_the_same_actions(seed: int) -> None:
    def actions_of() -> list[Action]:
        rng = random.Random(seed)
        actions: list[Action] = []
        world = world_of(rng, "edgerag")
        for _ in range(80):
            event = random_event(world, rng)
            actions += world.tell(event) if event is not None else ()
        return actions

    assert actions_of() == actions_of()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_true_advice_never_brings_more_bytes_than_none_when_everything_fits(seed: int) -> None:
    """With a budget for all clusters each is read once, whoever had it read."""
    rng = random.Random(seed)
    groups = workload(rng)
    size_bytes = {c: rng.randint(1, 9) for c in CLUSTERS}
    budget_bytes = sum(size_bytes.values()) + 9
    for prefetch_reads_max in (0, 2):
        limits = ReadLimits(
            budget_bytes=budget_bytes, demand_reads_max=2, prefetch_reads_max=prefetch_reads_max
        )
        world = World(
            ReadPlanner(limits, size_bytes, Lru()), Memory(budget_bytes, size_bytes), limits
        )
        for number, queries in enumerate(groups):
            world.queries, world.position = queries, -1
            world.next_clusters = groups[number + 1][0] if number + 1 < len(groups) else ()
            world.tell(GroupBegan(queries=queries, next_query=world.next_clusters))
            for position in range(len(queries)):
                world.tell(QueryBegan(position=position))
                world.finish_query(rng)
            world.tell(GroupEnded())
        counts = world.memory.counts
        assert counts["demand"] + counts["prefetch"] == len(
            {c for queries in groups for q in queries for c in q}
        )
        assert counts["evicted"] == 0
