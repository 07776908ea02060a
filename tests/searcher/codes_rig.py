"""An executor with codes at work over a small index, and a disk that can be made to fail."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.codes.codec import CODECS
from carpool.codes.faiss_codes import CodeScanner
from carpool.disk.index import open_index
from carpool.telemetry.metrics import Metrics
from schemas.query import SearchMode
from schemas.record import ClusterId
from searcher.codes.executor import CodesExecutor
from searcher.codes.load import load_codes
from searcher.codes.paged import PagedCodes
from searcher.codes.piece_reader import PieceReader
from searcher.codes.source import CodeSource
from searcher.executor import Search, SearchGroup, SearchResult
from searcher.plan.paged_codes import PagedCodesPlanner
from searcher.plan.row_pages import segment_first_pages
from searcher.rows.row_reader import RowReader
from searcher.shard.hot_shard import HotShard
from searcher.store.buffers import ReadBuffers
from searcher.store.files import SegmentFiles
from searcher.store.page_reads import ThreadPageReads
from searcher.store.reads_in_flight import ReadLimits
from searcher.store.waker import Waker
from tests.rig.faulty_disk import FaultyDisk
from tests.searcher.helpers import Float32, SmallIndex, exact_top_k, normalised, write_index
from tests.waiting import WAIT_S

DIMENSION = 32
NLIST = 12
TOP_K = 7
EVERY_PROMISE = pytest.mark.parametrize(
    ("codec", "mode", "missed_max"),
    [
        pytest.param(codec, *promise, marks=() if number % 2 == nth else pytest.mark.long)
        for number, codec in enumerate(CODECS)
        for nth, promise in enumerate([("default", 4), ("margin", 1)])
    ],
)
"""Each codec with both promises, of which the quick run has one; `missed_max` of 2,100 ids."""


def make_index(
    folder: Path, rows: int = 6000, codecs: Sequence[str] = ("rabitq4", "rabitq2")
) -> SmallIndex:
    """Writes an index of several segments, with codes.

    Its rows are around its centroids.
    """
    centroids = around(np.zeros((NLIST, DIMENSION), np.float32), seed=3)
    near = centroids[np.random.default_rng(4).integers(0, NLIST, rows)]
    return write_index(
        folder,
        around(near, seed=5),
        centroids,
        segment_bytes_max=1 << 18,
        codecs=codecs,
    )


def around(vectors: Float32, seed: int) -> Float32:
    """Returns a random direction near each of `vectors`: (n, dim) float32, normalised."""
    return normalised(vectors + directions(*vectors.shape, seed))


def directions(count: int, dimension: int, seed: int) -> Float32:
    """Returns random directions: (count, dimension) float32."""
    return normalised(np.random.default_rng(seed).standard_normal((count, dimension)))


def questions(index: SmallIndex, count: int, nprobe: int, seed: int = 7) -> list[Search]:
    """Returns random searches, each of its nearest clusters."""
    chosen = np.random.default_rng(seed).integers(0, NLIST, count)
    vectors = around(index.centroids[chosen], seed)
    return [
        Search(key=key, vector=vector, clusters=index.clusters_of(vector, nprobe), top_k=TOP_K)
        for key, vector in enumerate(vectors)
    ]


@dataclass
class Running:
    """An executor at work."""

    executor: CodesExecutor
    pages: FaultyDisk  # of rows
    code_pages: FaultyDisk
    metrics: Metrics
    found: queue.SimpleQueue[tuple[Search, SearchResult | None]]
    broken: dict[int, Exception] = field(default_factory=dict)

    def search(self, searches: list[Search]) -> dict[int, SearchResult | None]:
        self.executor.join(SearchGroup(searches=tuple(searches)))
        return self.take(len(searches))

    def take(self, count: int) -> dict[int, SearchResult | None]:
        return {
            search.key: found
            for search, found in (self.found.get(timeout=WAIT_S) for _ in range(count))
        }


@contextmanager
def running(
    index: SmallIndex,
    *,
    codec: str = "rabitq4",
    slots: int = 3,
    slot_pages: int = 64,
    timeout_us: int = int(WAIT_S * 1e6),
    attempts: int = 2,
    paged_share: float | None = None,
    threads: int = 2,
    around_codes: Callable[[CodeSource], Any] = lambda codes: codes,
    shard: HotShard | None = None,
    metrics: Metrics | None = None,
) -> Iterator[Running]:
    """Runs an executor on its own thread; checks at the end that no buffer or row was lost.

    `paged_share`: of the bytes of all codes that fit the memory; None: all are loaded.
    """
    opened, clock, waker = open_index(index.dir), SystemClock(), Waker()
    metrics = metrics or Metrics()
    files = SegmentFiles(index.paths, "auto")
    pages = FaultyDisk(ThreadPageReads(files, waker, clock, 4), waker)
    limits = ReadLimits(attempts=attempts, timeout_us=timeout_us)
    rows = RowReader(
        layout=opened.layout,
        sums=opened.row_sums,
        segment_first_pages=segment_first_pages([path.stat().st_size for path in index.paths]),
        reads=pages,
        buffers=ReadBuffers(slots, slot_pages),
        limits=limits,
        clock=clock,
    )
    stored = opened.open_codes(codec)
    code_files = SegmentFiles([file.path for file in stored.files], "auto")
    code_pages = FaultyDisk(ThreadPageReads(code_files, waker, clock, 4), waker)
    codes: CodeSource
    if paged_share is None:
        codes = load_codes(stored, opened.centroids, direct_io="auto")
    else:
        sizes = [extent.size_bytes for extent in stored.extents]
        codes = PagedCodes(
            stored,
            CodeScanner(
                stored.layout,
                opened.centroids,
                stored.rotation,
                stored.first_rows,
                stored.row_counts,
            ),
            PagedCodesPlanner(sizes, int(paged_share * sum(sizes))),
            PieceReader(stored, code_pages, ReadBuffers(3, 8), limits, clock),
            metrics,
            read_ahead_pages=8,
        )
    executor = CodesExecutor(
        codes=around_codes(codes),
        rows=rows,
        waker=waker,
        threads=threads,
        metrics=metrics,
        clock=clock,
        shard=shard,
    )
    found: queue.SimpleQueue[tuple[Search, SearchResult | None]] = queue.SimpleQueue()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            executor.run(lambda search, result: found.put((search, result)))
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield Running(executor, pages, code_pages, metrics, found)
    finally:
        executor.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive() and not errors
        executor.check_integrity()
        assert pages.close(WAIT_S) and code_pages.close(WAIT_S)
        files.close()
        code_files.close()
        waker.close()
        opened.close()


def exact(index: SmallIndex, search: Search, without: frozenset[int] = frozenset()) -> list[int]:
    """The row numbers of an exact search of the clusters of `search`, without some clusters."""
    clusters = [cluster for cluster in search.clusters if cluster not in without]
    return index.places(exact_top_k(index, search.vector, clusters, search.top_k))


def missed(index: SmallIndex, searches: list[Search], found: dict[int, SearchResult | None]) -> int:
    """How many ids of exact searches are missing."""
    total = 0
    for search in searches:
        result = found[search.key]
        assert result is not None
        total += len(set(exact(index, search)) - set(result.best.rows.tolist()))
    return total


def scores_of(index: SmallIndex, search: Search, result: SearchResult) -> Float32:
    """The true scores of the rows of a result."""
    order = np.argsort(index.assigned, kind="stable")
    places = index.places(order.tolist())
    document = dict(zip(places, order.tolist(), strict=True))
    rows = [document[row] for row in result.best.rows.tolist()]
    scores: Float32 = index.vectors[rows] @ search.vector
    return scores


def with_mode(searches: list[Search], mode: SearchMode) -> list[Search]:
    """The same searches with another promise."""
    return [replace(search, mode=mode) for search in searches]


def cluster_ids(*clusters: int) -> tuple[ClusterId, ...]:
    """Cluster ids."""
    return tuple(map(ClusterId, clusters))
