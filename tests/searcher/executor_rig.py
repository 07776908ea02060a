"""A cluster-major executor at work over real segments, and a disk that can be made to fail."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carpool.clock import SystemClock
from carpool.disk.index import open_index
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.executor import Executor, Search, SearchGroup, SearchResult
from searcher.memory.cluster_memory import ClusterMemory
from searcher.open_exact import ExactOptions, open_exact_plane
from searcher.settings import SearcherSettings
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import PageReads, ThreadPageReads
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

    executor: Executor
    memory: ClusterMemory
    metrics: Metrics
    trouble: Trouble
    found: queue.SimpleQueue[tuple[Search, SearchResult | None]]
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
    opened, metrics, disks = open_index(index.dir), Metrics(), list[FaultyDisk]()
    budget_bytes = int(share * index.size_bytes)

    def open_reads(files: SegmentFiles, waker: Waker) -> PageReads:
        disks.append(FaultyDisk(ThreadPageReads(files, waker, SystemClock(), 4), waker))
        return disks[0]

    plane = open_exact_plane(
        opened,
        SearcherSettings(
            budget_bytes=budget_bytes,
            scoring_threads=threads,
            read_timeout_ms=timeout_us // 1_000,
            direct_io="auto",
        ),
        metrics,
        SystemClock(),
        open_reads=open_reads,
        options=ExactOptions(
            prefetch_bytes=int(prefetch * budget_bytes), slice_bytes_max=slice_bytes_max
        ),
    )
    executor, trouble = plane.executor, Trouble(index, disks[0])
    found: queue.SimpleQueue[tuple[Search, SearchResult | None]] = queue.SimpleQueue()
    thread = threading.Thread(
        target=executor.run, args=(lambda search, result: found.put((search, result)),)
    )
    thread.start()
    try:
        yield Running(executor, plane.memory, metrics, trouble, found)
    finally:
        trouble.release()
        executor.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        executor.check_integrity()
        plane.close()
        opened.close()
        assert plane.waker.descriptor < 0, "a read did not end"


def questions(
    index: SmallIndex, count: int, nprobe: int
) -> tuple[Float32, list[tuple[ClusterId, ...]]]:
    queries = normalised(np.random.default_rng(1).standard_normal((count, DIMENSION)))
    return queries, [index.clusters_of(query, nprobe) for query in queries]


def exact(index: SmallIndex, query: Float32, clusters: Sequence[int]) -> list[int]:
    return index.places(exact_top_k(index, query, clusters, TOP_K))
