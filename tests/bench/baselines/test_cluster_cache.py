"""The cluster cache over real memory: joined reads, errors, what is held, shutdown."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from bench.baselines.cluster_cache import Arrival, ClusterCache
from bench.baselines.read_planner import ReadLimits, ReadPlanner
from carpool.clock import SystemClock
from carpool.disk.manifest import read_manifest
from carpool.disk.pages import dense
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.events import NoEvents
from searcher.memory.arena import Arena
from searcher.memory.cluster_memory import ClusterMemory, ReadRules
from searcher.plan.eviction.lru import Lru
from searcher.plan.slices import SliceId
from searcher.store.engine import BlockRead
from searcher.store.memory import MemoryEngine
from searcher.store.threads import ThreadEngine
from tests.searcher.helpers import SmallIndex, random_index

A, B, C, D = (SliceId(c) for c in range(4))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return random_index(tmp_path_factory.mktemp("index"), rows=3_000)


class Watched(ThreadEngine):
    """Threads over a segment in memory; counts reads of whole clusters, and does what a test wants
    before each.
    """

    def __init__(self, index: SmallIndex, before: Callable[[int], None] = lambda _: None) -> None:
        super().__init__(self._watch, depth=4, prefetch_depth=1, clock=SystemClock())
        self.segment = bytearray(index.segment_path.read_bytes())
        self.cluster_at = {extent.offset_bytes: extent.cluster for extent in index.extents}
        self.before = before
        self.reads: Counter[int] = Counter()
        self.seen = threading.Condition()

    def _watch(self, read: BlockRead) -> None:
        cluster = self.cluster_at[read.offset_bytes]
        with self.seen:
            self.reads[cluster] += 1
            self.seen.notify_all()
        self.before(cluster)
        MemoryEngine([bytes(self.segment)], clock=SystemClock())._copy(read)

    def wait_for(self, cluster: int) -> None:
        with self.seen:
            assert self.seen.wait_for(lambda: self.reads[cluster] > 0, timeout=30)


@dataclass(frozen=True, kw_only=True)
class Running:
    cache: ClusterCache
    memory: ClusterMemory
    metrics: Metrics

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"carpool_{name}", labels or None) or 0.0


@contextmanager
def caching(
    index: SmallIndex,
    engine: Watched,
    *,
    budget_bytes: int = 8 << 20,
    demand: int = 2,
    prefetch: int = 1,
    attempts: int = 2,
) -> Iterator[Running]:
    """Every cluster is one block read."""
    metrics = Metrics()
    layout = read_manifest(index.dir).layout()
    memory = ClusterMemory(
        layout=layout,
        extents=index.extents,
        build_id=index.manifest.build_id,
        paths=["the.seg"],
        arena=Arena(budget_bytes, layout.page_bytes),
        engine=engine,
        rules=ReadRules(attempts=attempts, timeout_us=60_000_000, watch_us=5_000),
        metrics=metrics,
        clock=SystemClock(),
        events=NoEvents(),
    )
    sizes = {
        SliceId(extent.cluster): memory.arena_bytes(SliceId(extent.cluster))
        for extent in index.extents
    }
    limits = ReadLimits(
        budget_bytes=memory.arena_bytes_total, demand_reads_max=demand, prefetch_reads_max=prefetch
    )
    cache = ClusterCache(memory=memory, planner=ReadPlanner(limits, sizes, Lru()), metrics=metrics)
    try:
        yield Running(cache=cache, memory=memory, metrics=metrics)
    finally:
        cache.stop()
        assert memory.close(30)


def ask(
    cache: ClusterCache, *clusters: SliceId, then: tuple[SliceId, ...] = ()
) -> dict[SliceId, Arrival]:
    """A group of one query, searched to its end."""
    cache.begin_group((clusters,), then)
    with closing(cache.query(0, clusters)) as arriving:
        arrived = {arrival.cluster: arrival for arrival in arriving}
    cache.end_group()
    cache.check_integrity()
    return arrived


def assert_(is_true: bool) -> None:
    assert is_true


def test_a_query_gets_every_cluster_with_the_rows_that_lie_on_disk(index: SmallIndex) -> None:
    with caching(index, Watched(index)) as it:
        it.cache.begin_group(((A, B, C),), ())
        seen = set()
        for arrival in it.cache.query(0, (A, B, C)):
            rows = dense(it.cache.pages(arrival.cluster))
            assert rows.rows.tolist() == np.flatnonzero(index.assigned == arrival.cluster).tolist()
            assert np.array_equal(rows.vectors, index.vectors[rows.rows])
            seen.add((arrival.cluster, arrival.tier))
        assert seen == {(A, "ssd"), (B, "ssd"), (C, "ssd")}
        assert it.cache.query_read_bytes() == sum(index.extents[c].size_bytes for c in (A, B, C))
        it.cache.end_group()
        assert {a.tier for a in ask(it.cache, A, B, C).values()} == {"ram"}
        assert it.cache.query_read_bytes() == 0


def test_a_prefetch_in_flight_is_joined_by_the_demand_and_read_once(index: SmallIndex) -> None:
    go_on = threading.Event()
    engine = Watched(index, lambda cluster: None if cluster != B else assert_(go_on.wait(30)))
    with caching(index, engine) as it:
        ask(it.cache, A, then=(B,))
        engine.wait_for(B)
        it.cache.begin_group(((B, A),), ())
        arriving = it.cache.query(0, (B, A))
        assert next(arriving).cluster == A  # B does not delay it
        go_on.set()
        assert [(a.cluster, a.tier) for a in arriving] == [(B, "ssd")]
        assert it.cache.query_read_bytes() == 0
        assert engine.reads == {A: 1, B: 1}
        assert it.sample("prefetches_total", result="late") == 1
        assert it.sample("bytes_read_total", purpose="demand") == index.extents[A].size_bytes
        assert it.sample("bytes_read_total", purpose="prefetch") == index.extents[B].size_bytes
        assert it.sample("cluster_requests_total", tier="ram") == 1
        assert it.sample("cluster_requests_total", tier="ssd") == 2


def test_a_prefetch_that_waits_in_the_engine_is_promoted_when_a_query_wants_it(
    index: SmallIndex,
) -> None:
    """Of two prefetches the engine begins one; the other begins when it is wanted, while the first
    still hangs.
    """
    go_on = threading.Event()
    engine = Watched(index, lambda cluster: None if cluster != B else assert_(go_on.wait(30)))
    with caching(index, engine, prefetch=2) as it:
        ask(it.cache, A, then=(B, C))
        engine.wait_for(B)
        assert engine.reads[C] == 0
        it.cache.begin_group(((C,),), ())
        assert [a.cluster for a in it.cache.query(0, (C,))] == [C]
        go_on.set()


def test_within_a_budget_of_two_clusters_any_sequence_of_queries_is_served(
    index: SmallIndex,
) -> None:
    sizes = sorted(extent.size_bytes for extent in index.extents)
    budget_bytes = sizes[-1] + sizes[-2]
    peaks: list[float] = []
    with caching(index, Watched(index), budget_bytes=budget_bytes, demand=3, prefetch=2) as it:
        generator = np.random.default_rng(3)
        clusters = [
            tuple(SliceId(int(c)) for c in generator.permutation(8)[:4]) for _ in range(120)
        ]
        for now, then in itertools.pairwise(clusters):
            arrived = ask(it.cache, *now, then=then)
            assert arrived.keys() == set(now)
            peaks.append(
                sum(it.sample("resident_bytes", kind=kind) for kind in ("resident", "in_flight"))
            )
        assert sizes[-1] < max(peaks) <= budget_bytes == it.sample("budget_bytes")


def test_a_read_that_fails_and_then_goes_through_is_not_noticed(index: SmallIndex) -> None:
    failures = iter([True])

    def fail_once(_: int) -> None:
        if next(failures, False):
            raise RetryableError("passing")

    engine = Watched(index, fail_once)
    with caching(index, engine, attempts=2) as it:
        ask(it.cache, A)
        assert engine.reads[A] == 2


def test_a_read_that_fails_again_ends_the_search_with_its_error(index: SmallIndex) -> None:
    def fail(cluster: int) -> None:
        if cluster == B:
            raise RetryableError("the cable is out")

    engine = Watched(index, fail)
    with caching(index, engine, attempts=3) as it, pytest.raises(RetryableError, match="cable"):
        ask(it.cache, A, B, C)
    assert engine.reads[B] == 3


def test_damage_is_never_retried_nor_granted_and_is_counted(index: SmallIndex) -> None:
    engine = Watched(index)
    extent = index.extents[B]
    engine.segment[extent.offset_bytes + 50] ^= 1
    with caching(index, engine) as it:
        with pytest.raises(CorruptionError) as raised:
            ask(it.cache, A, B)
        assert (raised.value.path, raised.value.offset_bytes) == ("the.seg", extent.offset_bytes)
        assert engine.reads[B] == 1
        assert it.sample("clusters_damaged_total") == 1


def test_a_query_that_is_given_up_frees_its_clusters(index: SmallIndex) -> None:
    sizes = [extent.size_bytes for extent in index.extents]
    with caching(index, Watched(index), budget_bytes=max(sizes)) as it:
        it.cache.begin_group(((A, B), (C,)), ())
        arriving = it.cache.query(0, (A, B))
        next(arriving)
        arriving.close()
        assert [a.cluster for a in it.cache.query(1, (C,))] == [C]
        it.cache.end_group()


def test_stopping_ends_a_query_that_waits_and_closing_says_whether_the_reads_are_done(
    index: SmallIndex,
) -> None:
    go_on = threading.Event()
    engine = Watched(index, lambda _: assert_(go_on.wait(30)))
    with caching(index, engine) as it:
        arrived: list[Arrival] = []

        def search() -> None:
            it.cache.begin_group(((A, B),), ())
            arrived.extend(it.cache.query(0, (A, B)))

        thread = threading.Thread(target=search)
        thread.start()
        engine.wait_for(A)
        it.cache.stop()
        assert it.memory.close(0.0) is False
        thread.join(30)
        assert not thread.is_alive()
        assert arrived == []
        go_on.set()


def test_the_gauges_show_resident_and_pinned_bytes(index: SmallIndex) -> None:
    with caching(index, Watched(index), budget_bytes=4096 * 3000) as it:
        ask(it.cache, A, B)
        it.cache.begin_group(((A,),), (B,))
        list(it.cache.query(0, (A,)))
        resident_bytes = index.extents[A].size_bytes + index.extents[B].size_bytes
        assert it.sample("resident_bytes", kind="resident") == resident_bytes
        assert it.sample("resident_bytes", kind="in_flight") == 0
        assert it.sample("resident_bytes", kind="pinned") == index.extents[B].size_bytes
        assert it.sample("budget_bytes") == 4096 * 3000
