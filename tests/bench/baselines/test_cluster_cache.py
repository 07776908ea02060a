"""The cluster cache over real memory: joined reads, errors, the budget, shutdown."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from bench.baselines.cluster_cache import ClusterCache
from bench.baselines.eviction.lru import Lru
from bench.baselines.read_planner import ReadLimits, ReadPlanner
from bench.data.clusters import open_clusters
from carpool.clock import SystemClock
from carpool.disk.manifest import read_manifest
from carpool.disk.pages import dense
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.events import NoEvents
from searcher.memory.arena import Arena
from searcher.memory.cluster_memory import ClusterMemory, ReadRules
from searcher.plan.slices import SliceId
from searcher.store.engine import BlockRead
from searcher.store.threads import ThreadEngine
from tests.searcher.helpers import SmallIndex, random_index
from tests.searcher.memory_engine import MemoryEngine

A, B, C = (SliceId(c) for c in range(3))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return random_index(tmp_path_factory.mktemp("index"), rows=3_000)


class Watched(ThreadEngine):
    """Threads over a segment in memory: counts reads of clusters, calls `before` in each."""

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

    def ask(self, *clusters: SliceId, then: tuple[SliceId, ...] = ()) -> dict[SliceId, str]:
        """Searches a group of one query to its end; returns where each cluster was found."""
        self.cache.begin_group((clusters,), then)
        arrived = dict(self.cache.query(clusters))
        self.cache.end_group()
        self.cache.check_integrity()
        return arrived


@contextmanager
def caching(
    index: SmallIndex, engine: Watched, *, budget_bytes: int = 8 << 20, prefetch: int = 1
) -> Iterator[Running]:
    """Every cluster is one block read."""
    metrics = Metrics()
    layout = read_manifest(index.dir).layout()
    memory = ClusterMemory(
        layout=layout,
        extents=index.extents,
        build_id=index.manifest.build_id,
        paths=["the.seg"],
        sums=open_clusters(index.dir).row_sums,
        arena=Arena(budget_bytes, layout.page_bytes),
        engine=engine,
        rules=ReadRules(attempts=2, timeout_us=60_000_000, watch_us=5_000),
        metrics=metrics,
        clock=SystemClock(),
        events=NoEvents(),
    )
    slices = [SliceId(extent.cluster) for extent in index.extents]
    sizes = {number: memory.arena_bytes(number) for number in slices}
    limits = ReadLimits(
        budget_bytes=memory.arena_bytes_total,
        demand_reads_max=2,
        prefetch_reads_max=prefetch,
        prefetch="overlapped",
    )
    cache = ClusterCache(memory=memory, planner=ReadPlanner(limits, sizes, Lru()), metrics=metrics)
    try:
        yield Running(cache=cache, memory=memory, metrics=metrics)
    finally:
        cache.stop()
        assert memory.close(30)


def test_a_query_gets_every_cluster_with_the_rows_on_disk(index: SmallIndex) -> None:
    with caching(index, Watched(index)) as it:
        it.cache.begin_group(((A, B, C),), ())
        for cluster, tier in it.cache.query((A, B, C)):
            assert tier == "ssd"
            rows = dense(it.cache.pages(cluster))
            documents = np.flatnonzero(index.assigned == cluster)
            assert rows.rows.tolist() == index.places(documents.tolist())
            assert np.array_equal(rows.vectors, index.vectors[documents])
        assert it.cache.query_read_bytes() == sum(index.extents[c].size_bytes for c in (A, B, C))
        it.cache.end_group()
        assert it.ask(A, B, C) == dict.fromkeys((A, B, C), "ram")
        assert it.cache.query_read_bytes() == 0


def test_a_prefetch_in_flight_is_joined_and_one_that_waits_is_promoted(index: SmallIndex) -> None:
    go_on = threading.Event()

    def pause_at_b(cluster: int) -> None:
        assert cluster != B or go_on.wait(30)

    engine = Watched(index, pause_at_b)
    with caching(index, engine, prefetch=2) as it:
        it.ask(A, then=(B, C))
        engine.wait_for(B)
        assert engine.reads[C] == 0  # the engine begins one prefetch at a time
        it.cache.begin_group(((B, C, A),), ())
        arriving = it.cache.query((B, C, A))
        assert [next(arriving).cluster, next(arriving).cluster] == [A, C]  # B does not delay them
        go_on.set()
        assert list(arriving) == [(B, "ssd")]
        assert it.cache.query_read_bytes() == 0
        assert engine.reads == {A: 1, B: 1, C: 1}
        assert it.sample("bytes_read_total", purpose="demand") == index.extents[A].size_bytes
        assert it.sample("cluster_requests_total", tier="ram") == 1
        assert it.sample("cluster_requests_total", tier="ssd") == 3


def test_within_a_budget_of_two_clusters_any_sequence_of_queries_is_served(
    index: SmallIndex,
) -> None:
    sizes = sorted(extent.size_bytes for extent in index.extents)
    budget_bytes = sizes[-1] + sizes[-2]
    peaks: list[float] = []
    with caching(index, Watched(index), budget_bytes=budget_bytes, prefetch=2) as it:
        generator = np.random.default_rng(3)
        clusters = [
            tuple(SliceId(int(c)) for c in generator.permutation(8)[:4]) for _ in range(120)
        ]
        for now, then in itertools.pairwise(clusters):
            assert it.ask(*now, then=then).keys() == set(now)
            peaks.append(
                sum(it.sample("resident_bytes", kind=kind) for kind in ("resident", "in_flight"))
            )
        assert sizes[-1] < max(peaks) <= budget_bytes == it.sample("budget_bytes")


@pytest.mark.parametrize("failures", [1, 2])
def test_a_read_that_fails_is_retried_and_then_ends_the_search_with_its_error(
    index: SmallIndex, failures: int
) -> None:
    def fail(cluster: int) -> None:
        if cluster == B and engine.reads[B] <= failures:
            raise RetryableError("the cable is out")

    engine = Watched(index, fail)
    with caching(index, engine) as it:
        if failures == 1:
            assert it.ask(A, B, C).keys() == {A, B, C}
        else:
            with pytest.raises(RetryableError, match="cable"):
                it.ask(A, B, C)
    assert engine.reads[B] == 2


def test_damage_ends_the_search_without_a_retry(index: SmallIndex) -> None:
    engine = Watched(index)
    extent = index.extents[B]
    engine.segment[extent.offset_bytes + 50] ^= 1
    with caching(index, engine) as it, pytest.raises(CorruptionError) as raised:
        it.ask(A, B)
    assert (raised.value.path, raised.value.offset_bytes) == ("the.seg", extent.offset_bytes)
    assert engine.reads[B] == 1


def test_stopping_ends_a_query_that_waits(index: SmallIndex) -> None:
    go_on = threading.Event()

    def pause(_: int) -> None:
        assert go_on.wait(30)

    engine = Watched(index, pause)
    with caching(index, engine) as it:
        thread = threading.Thread(target=it.ask, args=(A, B))
        thread.start()
        engine.wait_for(A)
        it.cache.stop()
        assert it.memory.close(0.0) is False  # reads are in flight
        thread.join(30)
        assert not thread.is_alive()
        go_on.set()
