"""The planner of reads under random events, against simple models; and CaGR-RAG to the letter."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.baselines.edgerag import EdgeRag
from bench.baselines.read_planner import PrefetchMode, ReadLimits, ReadPlanner
from bench.baselines.read_steps import (
    Action,
    Event,
    Evict,
    Grant,
    GroupBegan,
    GroupEnded,
    QueryBegan,
    Read,
    ReadEnded,
    Released,
)
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.slices import SliceId
from tests.searcher.dumb_policies import DumbLru

Clusters = tuple[SliceId, ...]
Queries = tuple[Clusters, ...]

CLUSTERS = [SliceId(c) for c in range(10)]
A, B, C, D, E = CLUSTERS[:5]
LATENCY_US = {c: 50 + (c * 37) % 100 for c in CLUSTERS}


@dataclass
class World:
    """A planner and a simple memory that does its actions. It knows no plans, pins or policies."""

    limits: ReadLimits
    size_bytes: dict[SliceId, int]
    policy: CachePolicy = field(default_factory=DumbLru)
    resident: set[SliceId] = field(default_factory=set)
    reading: dict[SliceId, str] = field(default_factory=dict)
    asked: set[SliceId] = field(default_factory=set)  # by the current query, not granted
    leased: set[SliceId] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    following: Queries = ()  # queries of the group that have not begun
    advised: Clusters = ()

    def __post_init__(self) -> None:
        self.planner = ReadPlanner(self.limits, self.size_bytes, self.policy)

    def used_bytes(self) -> int:
        return sum(self.size_bytes[c] for c in [*self.resident, *self.reading])

    def begin_group(self, queries: Queries, then: Clusters = ()) -> list[str]:
        self.following, self.advised = queries, then
        return self.tell(GroupBegan(queries=queries, next_query=then))

    def begin_query(self) -> list[str]:
        self.asked, self.following = set(self.following[0]), self.following[1:]
        return self.tell(QueryBegan())

    def tell(self, event: Event) -> list[str]:
        """Does what the planner says, checks it, and returns it in words."""
        match event:
            case ReadEnded():
                del self.reading[event.cluster]
                self.resident.add(event.cluster)
            case Released():
                self.leased.remove(event.cluster)
        lacked = set(self.asked)
        actions = self.planner.step(event)
        said = [self.do(action) for action in actions]
        self.check(lacked, actions)
        return said

    def do(self, action: Action) -> str:
        name = "ABCDEFGHIJ"[action.cluster]
        match action:
            case Evict():
                assert action.cluster not in self.leased, "evicted under a reader"
                self.resident.remove(action.cluster)
                self.counts["evicted"] += 1
                return f"evict {name}"
            case Read():
                assert action.cluster not in self.resident | self.reading.keys(), "read twice"
                assert (action.cluster in self.asked) is (action.purpose == "demand")
                self.reading[action.cluster] = action.purpose
                self.counts[action.purpose] += 1
                assert self.used_bytes() <= self.limits.budget_bytes, "the budget is overdrawn"
                return f"{action.purpose} {name}"
            case Grant():
                assert action.cluster in self.resident
                self.asked.remove(action.cluster)
                self.leased.add(action.cluster)
                self.counts[action.tier] += 1
                return f"{action.tier} {name}"

    def check(self, lacked: set[SliceId], actions: tuple[Action, ...]) -> None:
        self.planner.check_integrity()
        assert self.planner.residents() == self.resident
        assert self.planner.used_bytes == self.used_bytes() <= self.limits.budget_bytes
        assert self.planner.reading_bytes == sum(self.size_bytes[c] for c in self.reading)
        by_purpose = Counter(self.reading.values())
        assert by_purpose["demand"] <= self.limits.demand_reads_max
        assert by_purpose["prefetch"] <= self.limits.prefetch_reads_max
        prefetched = {a.cluster for a in actions if isinstance(a, Read) and a.purpose == "prefetch"}
        is_overlapped = self.limits.prefetch == "overlapped"
        if prefetched:
            assert not self.asked, "read ahead while the query lacked something"
            assert prefetched <= set(self.advised)
            assert self.limits.prefetch != "none"
        if prefetched and is_overlapped and not lacked:
            evicted = {a.cluster for a in actions if isinstance(a, Evict)}
            wanted = {c for query in self.following for c in query} | self.leased
            assert not evicted & wanted, "a prefetch evicted what the group wants"
            assert not evicted & set(self.advised), "a prefetch evicted what the next group wants"
        # No query is stuck: it waits for a read, or its own scoring will free bytes.
        assert not self.asked or self.reading or self.leased
        # A demand never waits for the bytes of a prefetch alone.
        if is_overlapped and self.asked - self.reading.keys() and not self.leased:
            assert any(
                purpose == "demand" or c in self.asked for c, purpose in self.reading.items()
            )

    def search(self, rng: random.Random, queries: Queries, then: Clusters = ()) -> None:
        """Searches a group; reads end and clusters are scored in any order."""
        self.begin_group(queries, then)
        for clusters in queries:
            granted = self.counts["ram"] + self.counts["ssd"]
            self.begin_query()
            while self.asked or self.leased:
                if self.leased and (not self.reading or rng.random() < 0.5):
                    self.tell(Released(cluster=rng.choice(sorted(self.leased))))
                else:
                    self.tell(ReadEnded(cluster=rng.choice(sorted(self.reading))))
            assert self.counts["ram"] + self.counts["ssd"] - granted == len(clusters)
        self.tell(GroupEnded())
        while self.reading and rng.random() < 0.5:
            self.tell(ReadEnded(cluster=rng.choice(sorted(self.reading))))


def limits_of(budget_bytes: int, prefetch: PrefetchMode, reads_max: int = 2) -> ReadLimits:
    return ReadLimits(
        budget_bytes=budget_bytes,
        demand_reads_max=reads_max,
        prefetch_reads_max=reads_max,
        prefetch=prefetch,
    )


def some_clusters(rng: random.Random) -> Clusters:
    return tuple(rng.sample(CLUSTERS, rng.randint(1, 5)))


def workload(rng: random.Random) -> list[Queries]:
    return [tuple(some_clusters(rng) for _ in range(rng.randint(1, 5))) for _ in range(12)]


@pytest.mark.parametrize("prefetch", ["none", "after_group", "overlapped"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_query_gets_every_cluster_within_the_budget_whatever_is_advised(
    prefetch: PrefetchMode, seed: int
) -> None:
    rng = random.Random(seed)
    groups = workload(rng)
    size_bytes = {c: rng.randint(1, 9) for c in CLUSTERS}
    largest = max(size_bytes.values())
    budget_bytes = rng.randint(largest, 3 * largest + 10)
    advices: list[Callable[[int], Clusters]] = [
        lambda n: groups[n + 1][0] if n + 1 < len(groups) else (),  # true
        lambda _: (),
        lambda n: groups[max(0, n - 2)][-1],  # stale
        lambda _: some_clusters(rng),  # wrong
    ]
    for advice in advices:
        limits = limits_of(budget_bytes, prefetch, rng.randint(1, 4))
        world = World(limits, size_bytes, EdgeRag(LATENCY_US))
        for number, queries in enumerate(groups):
            world.search(rng, queries, advice(number))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_without_groups_and_advice_it_is_the_plain_cache(seed: int) -> None:
    """One query a group, one cluster a query: as ten lines of EdgeRAG."""
    rng = random.Random(seed)
    world = World(limits_of(40, "overlapped"), dict.fromkeys(CLUSTERS, 10), EdgeRag(LATENCY_US))
    resident: set[SliceId] = set()
    asked: Counter[SliceId] = Counter()
    for cluster in [rng.choice(CLUSTERS) for _ in range(200)]:
        hits_before = world.counts["ram"]
        world.search(rng, ((cluster,),))
        asked[cluster] += 1
        assert world.counts["ram"] - hits_before == (cluster in resident)
        if cluster not in resident and len(resident) == 4:
            resident.remove(min(resident, key=lambda c: (LATENCY_US[c] * asked[c], c)))
        resident.add(cluster)
        assert world.planner.residents() == resident


@pytest.mark.parametrize("prefetch", ["none", "after_group", "overlapped"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_with_a_budget_for_all_clusters_each_is_read_once(
    prefetch: PrefetchMode, seed: int
) -> None:
    rng = random.Random(seed)
    groups = workload(rng)
    world = World(limits_of(120, prefetch), {c: rng.randint(1, 9) for c in CLUSTERS})
    for number, queries in enumerate(groups):
        world.search(rng, queries, groups[number + 1][0] if number + 1 < len(groups) else ())
    distinct = {c for queries in groups for query in queries for c in query}
    assert world.counts["demand"] + world.counts["prefetch"] == len(distinct)
    assert world.counts["evicted"] == 0


def test_to_the_letter_the_next_query_is_prefetched_after_the_last_search_of_a_group() -> None:
    """CaGR-RAG, Alg. 1, lines 35-37: nothing protects what is in the cache."""
    world = World(limits_of(30, "after_group"), dict.fromkeys(CLUSTERS, 10))
    world.begin_group(((A,), (B,)), then=(C, A, D, E))
    assert world.begin_query() == ["demand A"]
    assert world.tell(ReadEnded(cluster=A)) == ["ssd A"]
    assert world.tell(Released(cluster=A)) == []
    assert world.begin_query() == ["demand B"]
    assert world.tell(ReadEnded(cluster=B)) == ["ssd B"]
    assert world.tell(Released(cluster=B)) == []
    assert world.tell(GroupEnded()) == ["prefetch C", "evict A", "prefetch D"]
    assert world.tell(ReadEnded(cluster=C)) == ["evict B", "prefetch E"]
    world.begin_group(((C, A, D, E),))
    # What is being prefetched is joined, and what was evicted is read again.
    assert world.begin_query() == ["ram C"]
    assert world.tell(Released(cluster=C)) == ["evict C", "demand A"]
    assert world.tell(ReadEnded(cluster=D)) == ["ssd D"]
