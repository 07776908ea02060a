"""A cluster-major executor at work over real segments, and a disk that can be made to fail."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carpool.clock import SystemClock
from carpool.disk.checked_file import CheckedFile
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.cluster_major_executor import ClusterMajorExecutor
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.memory.arena import Arena, choose_block_bytes
from searcher.memory.cluster_memory import ClusterMemory, FlightLimits
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cut import Slices
from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.limits import ClusterMajorLimits
from searcher.scoring.pool import ScoringPool
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import ThreadPageReads
from searcher.store.reads_in_flight import ReadLimits
from searcher.store.waker import Waker
from tests.rig.faulty_disk import Fault, FaultyDisk, PageRead
from tests.searcher.faults import FAIL
from tests.searcher.helpers import Float32, SmallIndex, exact_top_k, normalised, random_index
from tests.waiting import WAIT_S

DIMENSION = 32
NLIST = 12
TOP_K = 7


def make_index(folder: Path) -> SmallIndex:
    """Returns an index of random vectors in several segments."""
    return random_index(
        folder, rows=6000, dimension=DIMENSION, nlist=NLIST, seed=4, segment_bytes_max=1 << 18
    )


class Trouble:
    """Lets reads of some clusters fail, end early, be damaged, slow or hang, as files do on a bad
    disk.
    """

    def __init__(self, index: SmallIndex, disk: FaultyDisk) -> None:
        layout = index.manifest.layout()
        self._clusters = {
            (extent.segment, extent.offset_bytes + page * layout.page_bytes): (
                extent.cluster,
                page,
            )
            for extent in index.extents
            for page in range(extent.page_count)
        }
        self._disk = disk
        self.failing: set[int] = set()
        self.damaged: set[int] = set()
        self.damaged_pages: set[tuple[int, int]] = set()
        self.short: set[int] = set()
        self.slow: set[int] = set()
        self.hanging: set[int] = set()
        disk.fault = self._fault

    def release(self) -> None:
        """No read hangs any more."""
        self.hanging = set()
        self._disk.release()

    def _fault(self, read: PageRead) -> Fault:
        cluster, page = self._clusters[read.file, read.offset_bytes]
        if cluster in self.hanging and page == 0:
            return "hang"
        if cluster in self.failing:
            return FAIL
        if cluster in self.short:
            return "short"
        if cluster in self.damaged or (cluster, page) in self.damaged_pages:
            return "flip"
        return 0.005 if cluster in self.slow else None


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
        self.executor.join(SearchGroup(searches=searches, window=object(), horizon=foreseen))
        return tuple(search.key for search in searches)

    def take(self, count: int) -> dict[int, SearchResult | None]:
        return {
            search.key: found
            for search, found in (self.found.get(timeout=WAIT_S) for _ in range(count))
        }

    def bytes_read(self, *purposes: str) -> float:
        return sum(
            self.metrics.registry.get_sample_value("carpool_bytes_read_total", {"purpose": purpose})
            or 0
            for purpose in purposes or ("demand", "prefetch")
        )


@contextmanager
def running(
    index: SmallIndex,
    *,
    share: float = 0.5,
    threads: int = 2,
    prefetch: float = 0.0,
    timeout_us: int = int(WAIT_S * 1e6),
    slice_bytes_max: int = 0,
) -> Iterator[Running]:
    clock, metrics, layout = SystemClock(), Metrics(), index.manifest.layout()
    slices = Slices(index.extents, layout, slice_bytes_max)
    block_bytes = choose_block_bytes(layout.page_bytes, index.size_bytes // NLIST)
    arena = Arena(int(share * index.size_bytes), block_bytes)
    files = SegmentFiles(index.paths, "auto")
    waker = Waker()
    disk = FaultyDisk(ThreadPageReads(files, waker, clock, 4), waker)
    trouble = Trouble(index, disk)
    memory = ClusterMemory(
        layout=layout,
        extents=slices.extents,
        paths=[str(path) for path in index.paths],
        sums=[
            CheckedFile.open(p, index.manifest.build_id, index.manifest.files) for p in index.paths
        ],
        arena=arena,
        reads=disk,
        waker=waker,
        limits=ReadLimits(timeout_us=timeout_us),
        flight=FlightLimits(in_flight_bytes=1 << 17, ahead_max=1, read_bytes_max=1 << 15),
        metrics=metrics,
        clock=clock,
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
    with closing(ScoringPool(threads)) as pool:
        executor = ClusterMajorExecutor(
            memory=memory,
            slices=slices,
            planner=planner,
            pool=pool,
            waker=waker,
            metrics=metrics,
            clock=clock,
        )
        found: queue.SimpleQueue[tuple[Search, SearchResult | None]] = queue.SimpleQueue()
        thread = threading.Thread(
            target=executor.run, args=(lambda search, result: found.put((search, result)),)
        )
        thread.start()
        try:
            yield Running(executor, memory, metrics, trouble, found, thread)
        finally:
            trouble.release()
            executor.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()
            executor.check_integrity()
            assert memory.close(WAIT_S)
            files.close()
            waker.close()


def questions(
    index: SmallIndex, count: int, nprobe: int
) -> tuple[Float32, list[tuple[ClusterId, ...]]]:
    queries = normalised(np.random.default_rng(1).standard_normal((count, DIMENSION)))
    return queries, [index.clusters_of(query, nprobe) for query in queries]


def exact(index: SmallIndex, query: Float32, clusters: Sequence[int]) -> list[int]:
    return index.places(exact_top_k(index, query, clusters, TOP_K))
