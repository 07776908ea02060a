"""The cluster cache with real threads and buffers: budget, joined reads, errors, shutdown."""

from __future__ import annotations

import itertools
import mmap
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.disk.segment import ClusterExtent
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cache import cluster_cache
from searcher.cache.cluster_cache import Arrival, ClusterCache
from searcher.cache.lru import Lru
from searcher.events import NoEvents
from searcher.plan.reads import ReadLimits
from searcher.store.memory import MemoryReader
from searcher.store.reader import ClusterReader
from tests.searcher.helpers import SmallIndex, random_index

A, B, C, D = (ClusterId(c) for c in range(4))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return random_index(tmp_path_factory.mktemp("index"), rows=3_000)


class Watched:
    """A reader over memory that counts its reads, and does what a test wants before each."""

    def __init__(self, index: SmallIndex, before: Callable[[int], None] = lambda _: None) -> None:
        self.inner = MemoryReader(index.segment_path.read_bytes())
        self.before = before
        self.reads: Counter[int] = Counter()
        self.changed = threading.Condition()

    def read_into(self, extent: ClusterExtent, pages: mmap.mmap) -> None:
        with self.changed:
            self.reads[extent.cluster] += 1
            self.changed.notify_all()
        self.before(extent.cluster)
        self.inner.read_into(extent, pages)

    def wait_for(self, cluster: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.reads[cluster] > 0, timeout=30)

    def close(self) -> None:
        self.inner.close()


def cache_of(
    index: SmallIndex,
    reader: ClusterReader,
    *,
    budget_bytes: int = 1 << 30,
    demand: int = 2,
    prefetch: int = 1,
    attempts: int = 2,
    metrics: Metrics | None = None,
) -> ClusterCache:
    return ClusterCache(
        reader=reader,
        extents=index.extents,
        dimension=index.manifest.dimension,
        path="the.seg",
        policy=Lru(),
        limits=ReadLimits(budget_bytes=budget_bytes, demand_reads_max=demand, prefetch_reads_max=prefetch),
        read_attempts=attempts,
        metrics=metrics or Metrics(),
        clock=SystemClock(),
        events=NoEvents(),
    )


def ask(cache: ClusterCache, *clusters: ClusterId, then: tuple[ClusterId, ...] = ()) -> dict[ClusterId, Arrival]:
    """A group of one query, searched to its end."""
    cache.begin_group((clusters,), then)
    with closing(cache.query(0, clusters)) as arriving:
        arrived = {arrival.cluster: arrival for arrival in arriving}
    cache.end_group()
    cache.check_integrity()
    return arrived


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"carpool_{name}", labels) or 0.0


def test_a_query_gets_every_cluster_with_the_rows_that_lie_on_disk(index: SmallIndex) -> None:
    cache = cache_of(index, Watched(index))
    cache.begin_group(((A, B, C),), ())
    seen = set()
    for arrival in cache.query(0, (A, B, C)):
        rows = cache.rows(arrival.cluster)
        assert rows.rows.tolist() == np.flatnonzero(index.assigned == arrival.cluster).tolist()
        assert np.array_equal(rows.vectors, index.vectors[rows.rows])
        seen.add((arrival.cluster, arrival.tier))
        del rows
    assert seen == {(A, "ssd"), (B, "ssd"), (C, "ssd")}
    assert cache.query_read_bytes() == sum(index.extents[c].size_bytes for c in (A, B, C))
    cache.end_group()
    assert {a.tier for a in ask(cache, A, B, C).values()} == {"ram"}
    assert cache.query_read_bytes() == 0
    assert cache.close()


def test_a_prefetch_in_flight_is_joined_by_the_demand_and_read_once(index: SmallIndex) -> None:
    go_on = threading.Event()
    reader = Watched(index, lambda cluster: None if cluster != B else assert_(go_on.wait(30)))
    metrics = Metrics()
    cache = cache_of(index, reader, metrics=metrics)
    ask(cache, A, then=(B,))
    reader.wait_for(B)
    cache.begin_group(((B, A),), ())
    arriving = cache.query(0, (B, A))
    assert next(arriving).cluster == A  # is not held up by B
    go_on.set()
    assert [(a.cluster, a.tier) for a in arriving] == [(B, "ssd")]
    assert cache.query_read_bytes() == 0
    assert reader.reads == {A: 1, B: 1}
    assert sample(metrics, "prefetches_total", result="late") == 1
    assert sample(metrics, "bytes_read_total", purpose="demand") == index.extents[A].size_bytes
    assert sample(metrics, "bytes_read_total", purpose="prefetch") == index.extents[B].size_bytes
    assert sample(metrics, "cluster_requests_total", tier="ram") == 1
    assert sample(metrics, "cluster_requests_total", tier="ssd") == 2
    assert cache.close()


def assert_(is_true: bool) -> None:
    assert is_true


def test_the_buffers_in_memory_never_exceed_the_budget(index: SmallIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in buffers that exist, not in the planner's books, whenever a read is about to fill one."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Pages(mmap.mmap):
        __hash__ = object.__hash__

    def allocate(size_bytes: int) -> mmap.mmap:
        pages = Pages(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        alive.add(pages)
        return pages

    monkeypatch.setattr(cluster_cache, "allocate_pages", allocate)
    sizes = sorted(extent.size_bytes for extent in index.extents)
    budget_bytes = sizes[-1] + sizes[-2]
    peaks: list[int] = []
    lock = threading.Lock()

    def count(_: int) -> None:
        with lock:
            peaks.append(sum(len(pages) for pages in list(alive)))

    cache = cache_of(index, Watched(index, count), budget_bytes=budget_bytes, demand=3, prefetch=2)
    generator = np.random.default_rng(3)
    clusters = [tuple(ClusterId(int(c)) for c in generator.permutation(8)[:4]) for _ in range(120)]
    for now, then in itertools.pairwise(clusters):
        assert ask(cache, *now, then=then).keys() == set(now)
    assert max(peaks) <= budget_bytes
    assert max(peaks) > sizes[-1]
    assert cache.close()
    del cache
    assert sum(len(pages) for pages in list(alive)) == 0


def test_a_read_that_fails_and_then_goes_through_is_not_noticed(index: SmallIndex) -> None:
    failures = iter([True])

    def fail_once(_: int) -> None:
        if next(failures, False):
            raise RetryableError("passing")

    reader = Watched(index, fail_once)
    cache = cache_of(index, reader, attempts=2)
    assert ask(cache, A)[A].error is None
    assert reader.reads[A] == 2
    assert cache.close()


def test_a_read_that_goes_on_failing_costs_that_cluster_only(index: SmallIndex) -> None:
    def fail(cluster: int) -> None:
        if cluster == B:
            raise RetryableError("the cable is out")

    reader = Watched(index, fail)
    cache = cache_of(index, reader, attempts=3)
    arrived = ask(cache, A, B, C)
    assert isinstance(arrived[B].error, RetryableError)
    assert str(arrived[B].error) == "the cable is out"
    assert arrived[A].error is arrived[C].error is None
    assert reader.reads == {A: 1, B: 3, C: 1}
    ask(cache, B)
    assert reader.reads[B] == 6  # a failure is not remembered
    assert cache.close()


def test_damage_is_never_retried_nor_granted_and_is_counted(index: SmallIndex) -> None:
    reader = Watched(index)
    extent = index.extents[B]
    segment = bytearray(index.segment_path.read_bytes())
    segment[extent.offset_bytes + 50] ^= 1
    reader.inner = MemoryReader(bytes(segment))
    metrics = Metrics()
    cache = cache_of(index, reader, metrics=metrics)
    arrived = ask(cache, A, B)
    error = arrived[B].error
    assert isinstance(error, CorruptionError)
    assert (error.path, error.offset_bytes) == ("the.seg", extent.offset_bytes)
    assert arrived[A].error is None
    assert reader.reads[B] == 1
    assert sample(metrics, "clusters_damaged_total") == 1
    assert error.__traceback__ is None  # it would hold the buffer
    assert cache.close()


def test_a_fault_in_a_reader_denies_the_cluster_and_leaves_nobody_waiting(index: SmallIndex) -> None:
    def break_(cluster: int) -> None:
        if cluster == A:
            raise ZeroDivisionError("a bug")

    cache = cache_of(index, Watched(index, break_))
    arrived = ask(cache, A, B)
    assert isinstance(arrived[A].error, RetryableError)
    assert "a bug" in str(arrived[A].error)
    assert arrived[B].error is None
    assert cache.close()


def test_a_query_that_is_given_up_frees_what_it_held(index: SmallIndex) -> None:
    sizes = [extent.size_bytes for extent in index.extents]
    cache = cache_of(index, Watched(index), budget_bytes=max(sizes))
    cache.begin_group(((A, B), (C,)), ())
    arriving = cache.query(0, (A, B))
    next(arriving)
    arriving.close()
    assert [a.cluster for a in cache.query(1, (C,))] == [C]
    cache.end_group()
    cache.check_integrity()
    assert cache.close()


def test_closing_ends_a_query_that_waits_and_says_whether_the_readers_are_done(index: SmallIndex) -> None:
    go_on = threading.Event()
    reader = Watched(index, lambda _: assert_(go_on.wait(30)))
    cache = cache_of(index, reader)
    arrived: list[Arrival] = []

    def search() -> None:
        cache.begin_group(((A, B),), ())
        arrived.extend(cache.query(0, (A, B)))

    thread = threading.Thread(target=search)
    thread.start()
    reader.wait_for(A)
    assert cache.close(timeout_s=0.0) is False
    thread.join(30)
    assert not thread.is_alive()
    assert arrived == []
    go_on.set()
    assert cache.close(timeout_s=30) is True


def test_the_gauges_show_what_is_held(index: SmallIndex) -> None:
    metrics = Metrics()
    cache = cache_of(index, Watched(index), budget_bytes=12345678, metrics=metrics)
    ask(cache, A, B)
    cache.begin_group(((A,),), (B,))
    list(cache.query(0, (A,)))
    held = index.extents[A].size_bytes + index.extents[B].size_bytes
    assert sample(metrics, "resident_bytes", kind="resident") == held
    assert sample(metrics, "resident_bytes", kind="in_flight") == 0
    assert sample(metrics, "resident_bytes", kind="pinned") == index.extents[B].size_bytes
    assert sample(metrics, "budget_bytes") == 12345678
    assert cache.close()
