"""A cluster-major executor at work over real segments, and a disk that can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np

from carpool.clock import SystemClock
from carpool.disk.index import open_index
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.executor import Search, SearchGroup
from searcher.open_exact import ExactOptions, ExactPlane, open_exact_plane
from searcher.settings import SearcherSettings
from tests.rig.faulty_disk import Fault, FaultyDisk, PageRead
from tests.searcher.faults import Disks
from tests.searcher.helpers import Float32, SmallIndex, exact_top_k, normalised, random_index
from tests.searcher.searching import Searching
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
    """Says what happens to reads: `faults` by cluster, or by cluster and page."""

    def __init__(self, index: SmallIndex, disk: FaultyDisk) -> None:
        layout = index.manifest.layout()
        self._places = {
            (extent.segment, extent.offset_bytes + page * layout.page_bytes): (extent.cluster, page)
            for extent in index.extents
            for page in range(extent.page_count)
        }
        self._disk = disk
        self.faults: dict[int | tuple[int, int], Fault] = {}
        disk.fault = self._fault

    def release(self) -> None:
        """All is well from now on."""
        self.faults = {}
        self._disk.release()

    def _fault(self, read: PageRead) -> Fault:
        cluster, page = self._places[read.file, read.offset_bytes]
        return self.faults.get((cluster, page), self.faults.get(cluster))


class Running(Searching):
    """An executor of exact searches, and what its disk does."""

    def __init__(self, plane: ExactPlane, metrics: Metrics, trouble: Trouble) -> None:
        super().__init__(plane, metrics)
        self.memory, self.trouble = plane.memory, trouble
        self._keys = count()

    def join(
        self,
        queries: Float32,
        clusters: Sequence[tuple[int, ...]],
        deadline_us: int | None = None,
        horizon: Mapping[int, int] | None = None,
    ) -> tuple[int, ...]:
        searches = tuple(
            Search(
                key=next(self._keys),
                vector=query,
                clusters=tuple(map(ClusterId, probes)),
                top_k=TOP_K,
                deadline_us=deadline_us,
            )
            for query, probes in zip(queries, clusters, strict=True)
        )
        foreseen = {ClusterId(cluster): windows for cluster, windows in (horizon or {}).items()}
        group = SearchGroup(
            searches=tuple(self.seeing(searches)), window=object(), horizon=foreseen
        )
        self.executor.join(group)
        return tuple(search.key for search in searches)

    def bytes_read(self, *purposes: str) -> float:
        return sum(
            self.count("bytes_read_total", purpose=purpose)
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
    opened, metrics, disks = open_index(index.dir), Metrics(), Disks()
    budget_bytes = int(share * index.size_bytes)
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
        open_reads=disks,
        options=ExactOptions(
            prefetch_bytes=int(prefetch * budget_bytes), slice_bytes_max=slice_bytes_max
        ),
    )
    trouble = Trouble(index, disks[0])
    here = Running(plane, metrics, trouble)
    try:
        yield here
    finally:
        trouble.release()
        here.close()
        opened.close()
        assert plane.waker.descriptor < 0, "a read did not end"


def questions(
    index: SmallIndex, count: int, nprobe: int
) -> tuple[Float32, list[tuple[ClusterId, ...]]]:
    queries = normalised(np.random.default_rng(1).standard_normal((count, DIMENSION)))
    return queries, [index.clusters_of(query, nprobe) for query in queries]


def exact(index: SmallIndex, query: Float32, clusters: Sequence[int]) -> list[int]:
    return index.places(exact_top_k(index, query, clusters, TOP_K))
