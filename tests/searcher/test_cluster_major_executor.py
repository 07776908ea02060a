"""The cluster-major executor over real segments, threads and memory: exact, each cluster once, and whole books."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.disk.pages import PageLayout
from carpool.disk.segments import ClusterExtent, SegmentWriter, plan_extents, segment_name
from carpool.errors import CorruptionError, RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cache.arena import Arena, choose_block_bytes
from searcher.cache.cluster_memory import ClusterMemory, ReadRules
from searcher.cache.farthest_next_use import FarthestNextUse
from searcher.cache.slices import Slices
from searcher.events import NoEvents
from searcher.execution.cluster_major import ClusterMajor
from searcher.execution.executor import Found, Search, SearchGroup
from searcher.plan.cluster_major import ClusterMajorLimits, ClusterMajorPlanner
from searcher.scoring_pool import ScoringPool
from searcher.store.engine import BlockEngine, BlockRead
from searcher.store.files import SegmentFiles
from searcher.store.threads import ThreadEngine
from tests.searcher.helpers import Float32, normalised

GENERATION = 77
DIMENSION = 32
NLIST = 12
TOP_K = 7


@dataclass(frozen=True)
class Disk:
    """An index without documents: vectors (n, dim), their clusters, segments on disk."""

    folder: Path
    vectors: Float32
    centroids: Float32
    assigned: np.ndarray
    layout: PageLayout
    extents: tuple[ClusterExtent, ...]

    @property
    def paths(self) -> list[Path]:
        return [self.folder / segment_name(n) for n in range(1 + max(extent.segment for extent in self.extents))]

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)

    def exact(self, query: Float32, clusters: Sequence[int]) -> list[int]:
        rows = np.flatnonzero(np.isin(self.assigned, clusters))
        scores = self.vectors[rows] @ query
        return [int(rows[at]) for at in np.lexsort((rows, -scores))[:TOP_K]]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    rng = np.random.default_rng(4)
    vectors = normalised(rng.standard_normal((6000, DIMENSION)))
    centroids = normalised(rng.standard_normal((NLIST, DIMENSION)))
    assigned = probe(centroids, vectors, 1)[:, 0]
    layout = PageLayout(dimension=DIMENSION, vector_dtype="float32", page_bytes=4096)
    extents = plan_extents(layout, np.bincount(assigned, minlength=NLIST).tolist(), segment_bytes_max=1 << 18)
    folder = tmp_path_factory.mktemp("disk")
    writer = SegmentWriter(folder, layout=layout, generation=GENERATION, extents=extents)
    for cluster in range(NLIST):
        rows = np.flatnonzero(assigned == cluster).astype(np.int64)
        writer.append(cluster, vectors[rows], rows)
    writer.close()
    return Disk(folder, vectors, centroids, assigned, layout, tuple(extents))


class Trouble:
    """Lets reads of some clusters fail, end early, be damaged, slow or hang, as files do on a bad disk."""

    def __init__(self, disk: Disk, files: SegmentFiles) -> None:
        self._files = files
        self._clusters = {
            (extent.segment, extent.offset_bytes + page * disk.layout.page_bytes): (extent.cluster, page)
            for extent in disk.extents
            for page in range(extent.page_count)
        }
        self.failing: set[int] = set()
        self.damaged: set[int] = set()
        self.damaged_pages: set[tuple[int, int]] = set()
        self.short: set[int] = set()
        self.slow: set[int] = set()
        self.hanging: set[int] = set()
        self.released = threading.Event()

    def read_block(self, read: BlockRead) -> None:
        cluster, page = self._clusters[read.file, read.offset_bytes]
        if cluster in self.hanging and page == 0:
            self.released.wait(20)
        if cluster in self.failing:
            raise RetryableError("the disk said no")
        if cluster in self.short:
            raise self._files.cut_short(read, 0)
        if cluster in self.slow:
            time.sleep(0.005)
        self._files.read_block(read)
        if cluster in self.damaged or (cluster, page) in self.damaged_pages:
            read.buffers[0][100] ^= 1


@dataclass
class Running:
    """An executor at work."""

    executor: ClusterMajor
    memory: ClusterMemory
    metrics: Metrics
    trouble: Trouble
    found: queue.SimpleQueue[tuple[Search, Found | None]]
    keys: int = 0

    def join(
        self, queries: Float32, clusters: Sequence[tuple[int, ...]], deadline_us: int | None = None
    ) -> tuple[int, ...]:
        searches = tuple(
            Search(
                key=self.keys + n,
                vector=query,
                clusters=tuple(map(ClusterId, probes)),
                top_k=TOP_K,
                deadline_us=deadline_us,
            )
            for n, (query, probes) in enumerate(zip(queries, clusters, strict=True))
        )
        self.keys += len(searches)
        self.executor.join(SearchGroup(searches=searches, window=object()))
        return tuple(search.key for search in searches)

    def take(self, count: int) -> dict[int, Found | None]:
        return {search.key: found for search, found in (self.found.get(timeout=10) for _ in range(count))}

    def bytes_read(self) -> float:
        return sum(
            self.metrics.registry.get_sample_value("carpool_bytes_read_total", {"purpose": purpose}) or 0
            for purpose in ("demand", "prefetch")
        )


@contextmanager
def running(
    disk: Disk,
    *,
    share: float = 0.5,
    threads: int = 2,
    prefetch: float = 0.0,
    timeout_us: int = 10_000_000,
    slice_bytes_max: int = 0,
) -> Iterator[Running]:
    clock, metrics = SystemClock(), Metrics()
    slices = Slices(disk.extents, disk.layout, slice_bytes_max)
    block_bytes = choose_block_bytes(disk.layout.page_bytes, disk.size_bytes // NLIST)
    arena = Arena(int(share * disk.size_bytes), block_bytes)
    files = SegmentFiles(disk.paths, "auto")
    trouble = Trouble(disk, files)
    engine: BlockEngine = ThreadEngine(trouble.read_block, depth=4, prefetch_depth=1, clock=clock)
    memory = ClusterMemory(
        layout=disk.layout,
        extents=slices.extents,
        generation=GENERATION,
        paths=[str(path) for path in disk.paths],
        arena=arena,
        engine=engine,
        rules=ReadRules(attempts=2, timeout_us=timeout_us, block_bytes_max=1 << 15, watch_us=20_000),
        metrics=metrics,
        clock=clock,
        events=NoEvents(),
    )
    sizes = {number: memory.arena_bytes(number) for number in map(ClusterId, range(len(slices.extents)))}
    limits = ClusterMajorLimits(
        budget_bytes=arena.size_bytes,
        read_ahead_bytes=arena.size_bytes // 4,
        prefetch_bytes=int(prefetch * arena.size_bytes),
        overtake_us=5_000,
    )
    planner = ClusterMajorPlanner(limits, sizes, FarthestNextUse())
    with ScoringPool(threads) as pool:
        executor = ClusterMajor(
            memory=memory,
            slices=slices,
            planner=planner,
            pool=pool,
            metrics=metrics,
            clock=clock,
            events=NoEvents(),
        )
        found: queue.SimpleQueue[tuple[Search, Found | None]] = queue.SimpleQueue()
        thread = threading.Thread(target=executor.run, args=(lambda search, result: found.put((search, result)),))
        thread.start()
        try:
            yield Running(executor, memory, metrics, trouble, found)
        finally:
            trouble.released.set()
            executor.stop()
            thread.join(10)
            assert not thread.is_alive()
            executor.check_integrity()
            assert memory.close(5)
            files.close()


def questions(disk: Disk, count: int, nprobe: int, seed: int = 1) -> tuple[Float32, list[tuple[int, ...]]]:
    queries = normalised(np.random.default_rng(seed).standard_normal((count, DIMENSION)))
    return queries, [tuple(row) for row in probe(disk.centroids, queries, nprobe).tolist()]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("prefetch", [0.0, 0.2])
@pytest.mark.parametrize("slice_bytes_max", [0, 4096])
def test_windows_of_queries_find_exactly_what_an_exact_search_of_their_clusters_finds(
    disk: Disk, threads: int, prefetch: float, slice_bytes_max: int
) -> None:
    queries, clusters = questions(disk, 120, 5)
    with running(disk, threads=threads, prefetch=prefetch, slice_bytes_max=slice_bytes_max) as here:
        for start in range(0, 120, 30):
            keys = here.join(queries[start : start + 30], clusters[start : start + 30])
            for key, found in here.take(30).items():
                assert found is not None and key in keys
                assert found.best.rows.tolist() == disk.exact(queries[key], clusters[key])
                assert [probe.cluster for probe in found.probes] == list(clusters[key])
                assert not found.skipped and not found.errors
                np.testing.assert_array_equal(found.best.clusters, disk.assigned[found.best.rows])


def test_a_window_reads_each_cluster_once_and_what_queries_report_adds_up(disk: Disk) -> None:
    queries, clusters = questions(disk, 50, 6)
    with running(disk) as here:
        here.join(queries, clusters)
        found = here.take(50)
        distinct = {cluster for probes in clusters for cluster in probes}
        assert here.bytes_read() == sum(disk.extents[cluster].size_bytes for cluster in distinct)
        assert sum(each.bytes_read for each in found.values() if each) == here.bytes_read()


def test_queries_that_join_while_others_are_searched_share_their_reads(disk: Disk) -> None:
    queries, clusters = questions(disk, 40, 6)
    with running(disk, share=1.2) as here:
        for start in range(0, 40, 2):
            here.join(queries[start : start + 2], clusters[start : start + 2])
        here.take(40)
        assert here.bytes_read() <= disk.size_bytes, "all of it fits, so nothing is read twice"


def test_what_fails_or_is_damaged_is_skipped_by_those_who_wanted_it_and_says_why(disk: Disk) -> None:
    queries, clusters = questions(disk, 40, 3)
    with running(disk) as here:
        here.trouble.failing, here.trouble.damaged = {1, 2}, {3}
        here.join(queries, clusters)
        for key, found in here.take(40).items():
            assert found is not None
            bad = [cluster for cluster in clusters[key] if cluster in (1, 2, 3)]
            assert sorted(found.skipped) == sorted(bad)
            assert len(found.errors) == len(bad)
            assert {type(error) for error in found.errors} <= {RetryableError, CorruptionError}
            good = [cluster for cluster in clusters[key] if cluster not in bad]
            assert found.best.rows.tolist() == disk.exact(queries[key], good)
        here.trouble.failing, here.trouble.damaged = set(), set()
        here.join(queries, clusters)
        assert all(found is not None and not found.skipped for found in here.take(40).values()), "it was not kept"


def test_a_cluster_of_which_one_slice_is_damaged_is_skipped_and_what_is_left_of_it_is_searched(disk: Disk) -> None:
    queries, clusters = questions(disk, 40, 6)
    bad = 3
    lost = set(np.flatnonzero(disk.assigned == bad)[: disk.layout.rows_per_page].tolist())  # the rows of its first page
    with running(disk, slice_bytes_max=disk.layout.page_bytes) as here:
        here.trouble.damaged_pages = {(bad, 0)}
        here.join(queries, clusters)
        for key, found in here.take(40).items():
            assert found is not None
            assert found.skipped == ((bad,) if bad in clusters[key] else ())
            assert [f"cluster {bad} " in str(error) for error in found.errors] == [True] * len(found.skipped)
            rest = [row for row in disk.exact(queries[key], clusters[key]) if row not in lost]
            assert found.best.rows.tolist()[: len(rest)] == rest


KINDS = ("failing", "damaged", "short", "slow", "hanging")


def test_a_hundred_windows_of_bad_reads_cost_those_who_needed_them_those_clusters_and_memory_returns(
    disk: Disk,
) -> None:
    dice = random.Random(8)
    queries, clusters = questions(disk, 8, 3)
    skips: Counter[str] = Counter()
    with running(disk, timeout_us=300_000) as here:
        for number in range(100):
            bad = set(dice.sample(range(NLIST), 2))
            kind = KINDS[number % 5]
            if kind != "hanging" or number % 20 == 4:  # each of these takes until the timeout
                setattr(here.trouble, kind, bad)
            here.join(queries, clusters)
            for key, found in here.take(8).items():
                assert found is not None
                mine = clusters[key % 8]
                assert set(found.skipped) <= bad & set(mine)
                assert len(found.errors) == len(found.skipped)
                for error in found.errors:
                    assert isinstance(error, CorruptionError if kind in ("damaged", "short") else RetryableError)
                    assert any(f"cluster {cluster} " in str(error) for cluster in found.skipped), error
                good = [cluster for cluster in mine if cluster not in found.skipped]
                assert found.best.rows.tolist() == disk.exact(queries[key % 8], good)
                skips[kind] += len(found.skipped)
            setattr(here.trouble, kind, set())
            here.trouble.released.set()
            here.trouble.released = threading.Event()
        here.join(queries, clusters)
        here.take(8)
        until_s = time.monotonic() + 20
        while here.memory.stuck_bytes:
            assert time.monotonic() < until_s, "what hung came back, and its memory did not"
            time.sleep(0.005)
        residents = here.memory.residents()
        assert here.memory.used_bytes == sum(here.memory.arena_bytes(cluster) for cluster in residents)
    assert {kind for kind in KINDS if skips[kind]} == {"failing", "damaged", "short", "hanging"}, skips


def test_a_dropped_query_is_not_finished_and_an_expired_one_is_finished_with_none(disk: Disk) -> None:
    queries, clusters = questions(disk, 3, 3)
    with running(disk) as here:
        here.trouble.hanging = set(range(NLIST))
        (dropped,) = here.join(queries[:1], clusters[:1])
        (expired,) = here.join(queries[1:2], clusters[1:2], deadline_us=SystemClock().now_us() + 20_000)
        assert here.take(1) == {expired: None}
        here.executor.drop([dropped])
        here.trouble.released.set()
        (last,) = here.join(queries[2:], clusters[2:])
        assert list(here.take(1)) == [last]
