"""A cluster-major executor at work over real segments, and a disk that can be made to fail."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.disk.extents import ClusterExtent, plan_extents, segment_name
from carpool.disk.pages import PageLayout
from carpool.disk.segments import SegmentWriter
from carpool.errors import RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cluster_major_executor import ClusterMajorExecutor
from searcher.events import NoEvents
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.memory.arena import Arena, choose_block_bytes
from searcher.memory.cluster_memory import ClusterMemory, ReadRules
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cut import Slices
from searcher.plan.eviction.farthest_next_use import FarthestNextUse
from searcher.plan.limits import ClusterMajorLimits
from searcher.scoring.pool import ScoringPool
from searcher.store.engine import BlockEngine, BlockRead
from searcher.store.files import SegmentFiles
from searcher.store.threads import ThreadEngine
from tests.searcher.helpers import Float32, normalised

BUILD_ID = 77
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
        return [
            self.folder / segment_name(n)
            for n in range(1 + max(extent.segment for extent in self.extents))
        ]

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)

    def exact(self, query: Float32, clusters: Sequence[int]) -> list[int]:
        rows = np.flatnonzero(np.isin(self.assigned, clusters))
        scores = self.vectors[rows] @ query
        return [int(rows[at]) for at in np.lexsort((rows, -scores))[:TOP_K]]


def make_disk(folder: Path) -> Disk:
    """Returns an index of made-up vectors in `folder`."""
    rng = np.random.default_rng(4)
    vectors = normalised(rng.standard_normal((6000, DIMENSION)))
    centroids = normalised(rng.standard_normal((NLIST, DIMENSION)))
    assigned = probe(centroids, vectors, 1)[:, 0]
    layout = PageLayout(dimension=DIMENSION, vector_dtype="float32", page_bytes=4096)
    extents = plan_extents(
        layout, np.bincount(assigned, minlength=NLIST).tolist(), segment_bytes_max=1 << 18
    )
    writer = SegmentWriter(folder, layout=layout, build_id=BUILD_ID, extents=extents)
    for cluster in range(NLIST):
        rows = np.flatnonzero(assigned == cluster).astype(np.int64)
        writer.append(cluster, vectors[rows], rows)
    writer.close()
    return Disk(folder, vectors, centroids, assigned, layout, tuple(extents))


class Trouble:
    """Lets reads of some clusters fail, end early, be damaged, slow or hang, as files do on a bad
    disk.
    """

    def __init__(self, disk: Disk, files: SegmentFiles) -> None:
        self._files = files
        self._clusters = {
            (extent.segment, extent.offset_bytes + page * disk.layout.page_bytes): (
                extent.cluster,
                page,
            )
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

    executor: ClusterMajorExecutor
    memory: ClusterMemory
    metrics: Metrics
    trouble: Trouble
    found: queue.SimpleQueue[tuple[Search, SearchResult | None]]
    thread: threading.Thread
    keys: int = 0

    def join(
        self,
        queries: Float32,
        clusters: Sequence[tuple[int, ...]],
        deadline_us: int | None = None,
        next_query: tuple[int, ...] = (),
        horizon: Mapping[int, int] | None = None,
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
        foreseen = {ClusterId(cluster): windows for cluster, windows in (horizon or {}).items()}
        after = tuple(map(ClusterId, next_query))
        self.executor.join(
            SearchGroup(searches=searches, window=object(), next_query=after, horizon=foreseen)
        )
        return tuple(search.key for search in searches)

    def read_all(self, query: Float32) -> None:
        """Has every cluster read by a query, (1, dim)."""
        self.join(query, [tuple(range(NLIST))])
        self.take(1)

    def take(self, count: int) -> dict[int, SearchResult | None]:
        return {
            search.key: found
            for search, found in (self.found.get(timeout=10) for _ in range(count))
        }

    def bytes_read(self) -> float:
        return sum(
            self.metrics.registry.get_sample_value("carpool_bytes_read_total", {"purpose": purpose})
            or 0
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
        build_id=BUILD_ID,
        paths=[str(path) for path in disk.paths],
        arena=arena,
        engine=engine,
        rules=ReadRules(
            attempts=2, timeout_us=timeout_us, block_bytes_max=1 << 15, watch_us=20_000
        ),
        metrics=metrics,
        clock=clock,
        events=NoEvents(),
    )
    sizes = {
        number: memory.arena_bytes(number) for number in map(ClusterId, range(len(slices.extents)))
    }
    limits = ClusterMajorLimits(
        budget_bytes=arena.size_bytes,
        read_ahead_bytes=arena.size_bytes // 4,
        prefetch_bytes=int(prefetch * arena.size_bytes),
        overtake_us=5_000,
    )
    planner = ClusterMajorPlanner(limits, sizes, FarthestNextUse())
    with ScoringPool(threads) as pool:
        executor = ClusterMajorExecutor(
            memory=memory,
            slices=slices,
            planner=planner,
            pool=pool,
            metrics=metrics,
            clock=clock,
            events=NoEvents(),
        )
        found: queue.SimpleQueue[tuple[Search, SearchResult | None]] = queue.SimpleQueue()
        thread = threading.Thread(
            target=executor.run, args=(lambda search, result: found.put((search, result)),)
        )
        thread.start()
        try:
            yield Running(executor, memory, metrics, trouble, found, thread)
        finally:
            trouble.released.set()
            executor.stop()
            thread.join(10)
            assert not thread.is_alive()
            executor.check_integrity()
            assert memory.close(5)
            files.close()


def questions(
    disk: Disk, count: int, nprobe: int, seed: int = 1
) -> tuple[Float32, list[tuple[int, ...]]]:
    queries = normalised(np.random.default_rng(seed).standard_normal((count, DIMENSION)))
    return queries, [tuple(row) for row in probe(disk.centroids, queries, nprobe).tolist()]
