"""An executor with codes at work over a small index, and a disk that can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt

from carpool.clock import SystemClock
from carpool.disk.index import open_index
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.codes.open import ChosenCodes, CodesPlane, open_codes_plane
from searcher.executor import Search, SearchResult
from searcher.settings import SearcherSettings
from searcher.shard.hot_shard import HotShard
from tests.rig.faulty_disk import FaultyDisk
from tests.searcher.faults import Disks
from tests.searcher.helpers import Float32, SmallIndex, exact_top_k, normalised, write_index
from tests.searcher.searching import Searching
from tests.waiting import WAIT_S

DIMENSION = 32
NLIST = 12
TOP_K = 7


def make_index(folder: Path, rows: int = 6000, *, has_codes: bool = True) -> SmallIndex:
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
        has_codes=has_codes,
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


class Running(Searching):
    """With disks that can be made to fail: `pages` of rows, and `code_pages` if they are paged."""

    def __init__(self, plane: CodesPlane, metrics: Metrics, disks: Sequence[FaultyDisk]) -> None:
        super().__init__(plane, metrics)
        self.pages, self.code_pages = disks[0], disks[-1]


@contextmanager
def running(
    index: SmallIndex,
    *,
    slot_pages: int = 0,
    timeout_us: int = int(WAIT_S * 1e6),
    paged_share: float | None = None,
    threads: int = 2,
    shard: HotShard | None = None,
    metrics: Metrics | None = None,
) -> Iterator[Running]:
    """Runs an executor on its own thread; checks at the end that no buffer or row was lost.

    `paged_share`: of the bytes of all codes that fit the memory; None: all are loaded. The buffers
    are small: three of `slot_pages`, by default fewer for paged codes.
    """
    disks, slot_pages = Disks(), slot_pages or (64 if paged_share is None else 6)
    opened, metrics = open_index(index.dir), metrics or Metrics()
    codes = opened.open_codes()
    assert codes is not None
    paged_bytes = None
    if paged_share is not None:
        paged_bytes = int(paged_share * sum(extent.size_bytes for extent in codes.extents))
    with mock.patch.multiple("searcher.codes.open", SLOTS=3, SLOT_PAGES=slot_pages):
        plane = open_codes_plane(
            opened,
            ChosenCodes(codes=codes, paged_bytes=paged_bytes),
            SearcherSettings(
                scoring_threads=threads, read_timeout_ms=timeout_us // 1_000, direct_io="auto"
            ),
            metrics,
            SystemClock(),
            lambda codes: shard,
            open_reads=disks,
        )
    here = Running(plane, metrics, disks)
    try:
        yield here
    finally:
        for disk in disks:
            disk.release()
        here.close()
        opened.close()
    assert plane.waker.descriptor < 0, "a read did not end"


def exact(index: SmallIndex, search: Search, without: frozenset[int] = frozenset()) -> list[int]:
    """The row numbers of an exact search of the clusters of `search`, without some clusters."""
    clusters = [cluster for cluster in search.clusters if cluster not in without]
    return index.places(exact_top_k(index, search.vector, clusters, search.top_k))


def missed(
    index: SmallIndex,
    searches: list[Search],
    found: dict[int, SearchResult | None],
    are_visible: npt.NDArray[np.bool_] | None = None,
) -> int:
    """How many ids of exact searches are missing, where some documents are hidden."""
    total = 0
    for search in searches:
        result = found[search.key]
        assert result is not None
        best = exact_top_k(index, search.vector, search.clusters, search.top_k, are_visible)
        total += len(set(index.places(best)) - set(result.best.rows.tolist()))
        assert len(result.best.rows) == len(best)
    return total


def scores_of(index: SmallIndex, search: Search, result: SearchResult) -> Float32:
    """The true scores of the rows of a result."""
    document = {place: row for row, place in index._places.items()}
    rows = [document[row] for row in result.best.rows.tolist()]
    scores: Float32 = index.vectors[rows] @ search.vector
    return scores


def cluster_ids(*clusters: int) -> tuple[ClusterId, ...]:
    """Cluster ids."""
    return tuple(map(ClusterId, clusters))
