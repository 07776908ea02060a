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
from bench.baselines.read_planner import ReadLimits, ReadPlanner
from bench.data.clusters import open_clusters
from carpool.clock import SystemClock
from carpool.disk.manifest import read_manifest
from carpool.disk.pages import dense
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from searcher.events import NoEvents
from searcher.memory.arena import Arena
from searcher.memory.cluster_memory import ClusterMemory, FlightLimits
from searcher.plan.slices import SliceId
from searcher.store.factory import open_page_reads
from searcher.store.faulty import Fault, FaultyDisk, PageRead
from searcher.store.files import SegmentFiles
from searcher.store.reads_in_flight import ReadLimits as BatchLimits
from searcher.store.waker import Waker
from tests.searcher.dumb_policies import DumbLru
from tests.searcher.helpers import SmallIndex, random_index
from tests.waiting import WAIT_S

A, B, C = (SliceId(c) for c in range(3))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return random_index(tmp_path_factory.mktemp("index"), rows=3_000)


class Watched:
    """A disk that counts reads of clusters and asks `fault` about each."""

    def __init__(self, index: SmallIndex, fault: Callable[[int], Fault] = lambda _: None) -> None:
        self.path = index.segment_path
        self.cluster_at = {extent.offset_bytes: extent.cluster for extent in index.extents}
        self.fault = fault
        self.reads: Counter[int] = Counter()
        self.waker = Waker()
        self.files = SegmentFiles([self.path], "auto")
        reads = open_page_reads("auto", self.files, self.waker, SystemClock())
        self.disk = FaultyDisk(reads, self.waker, self._look)

    def _look(self, read: PageRead) -> Fault:
        cluster = self.cluster_at.get(read.offset_bytes)
        if cluster is None:  # the rest of one that is in two pieces of memory
            return None
        self.reads[cluster] += 1
        return self.fault(cluster)


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
    index: SmallIndex, watched: Watched, *, budget_bytes: int = 8 << 20, prefetch: int = 1
) -> Iterator[Running]:
    """Every cluster is one read, unless memory is scattered."""
    metrics = Metrics()
    layout = read_manifest(index.dir).layout()
    memory = ClusterMemory(
        layout=layout,
        extents=index.extents,
        paths=["the.seg"],
        sums=open_clusters(index.dir).row_sums,
        arena=Arena(budget_bytes, layout.page_bytes),
        reads=watched.disk,
        waker=watched.waker,
        limits=BatchLimits(timeout_us=60_000_000),
        flight=FlightLimits(in_flight_bytes=1 << 20, ahead_max=1),
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
    planner = ReadPlanner(limits, sizes, DumbLru())
    cache = ClusterCache(memory=memory, planner=planner, waker=watched.waker, metrics=metrics)
    try:
        yield Running(cache=cache, memory=memory, metrics=metrics)
    finally:
        cache.stop()
        watched.disk.release()
        assert memory.close(WAIT_S)
        watched.files.close()
        watched.waker.close()


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
    watched = Watched(index, lambda cluster: "hang" if cluster == B else None)
    with caching(index, watched, prefetch=2) as it:
        it.ask(A, then=(B, C))
        while not watched.disk.hanging:
            it.cache.wait()
        assert watched.reads[C] == 0  # one read ahead begins at a time
        it.cache.begin_group(((B, C, A),), ())
        arriving = it.cache.query((B, C, A))
        assert [next(arriving).cluster, next(arriving).cluster] == [A, C]  # B does not delay them
        watched.disk.release()
        assert list(arriving) == [(B, "ssd")]
        assert it.cache.query_read_bytes() == 0
        assert watched.reads == {A: 1, B: 1, C: 1}
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
    def fail(cluster: int) -> Fault:
        is_bad = cluster == B and watched.reads[B] <= failures
        return RetryableError("the cable is out") if is_bad else None

    watched = Watched(index, fail)
    with caching(index, watched) as it:
        if failures == 1:
            assert it.ask(A, B, C).keys() == {A, B, C}
        else:
            with pytest.raises(RetryableError, match="cable"):
                it.ask(A, B, C)
    assert watched.reads[B] == 2


def test_damage_ends_the_search_without_a_retry(index: SmallIndex) -> None:
    watched = Watched(index, lambda cluster: "flip" if cluster == B else None)
    with caching(index, watched) as it, pytest.raises(CorruptionError) as raised:
        it.ask(A, B)
    offset_bytes = raised.value.offset_bytes
    extent = index.extents[B]
    assert raised.value.path == "the.seg" and offset_bytes is not None
    assert extent.offset_bytes <= offset_bytes < extent.offset_bytes + extent.size_bytes
    assert watched.reads[B] == 1


def test_stopping_ends_a_query_that_waits(index: SmallIndex) -> None:
    watched = Watched(index, lambda _: "hang")
    with caching(index, watched) as it:
        thread = threading.Thread(target=it.ask, args=(A, B))
        thread.start()
        watched.disk.wait_until_hanging()
        it.cache.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert it.memory.close(0.0) is False  # reads are in flight
