"""A lone query on an index: the searcher's own executor, all clusters in its memory, beside FAISS
over the same vectors.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import msgspec
import numpy as np

from bench.lone_query import (
    CARPOOL,
    Float32,
    Int64,
    LoneOptions,
    LoneReport,
    Search,
    faiss_search,
    measure_all,
)
from bench.search.dataset import IndexView, choose_questions, open_view, probes_of
from bench.search.questions import read_asked
from carpool.clock import SystemClock
from carpool.disk.index import open_index
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from searcher.build import SearchPlane, open_search_plane
from searcher.events import NoEvents
from searcher.execution.executor import Search as Asked
from searcher.execution.executor import SearchGroup, SearchResult
from searcher.settings import SearcherSettings

ANSWER_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 600.0


class IndexData:
    """An index as `LoneData`: its vectors in an IVF-Flat of FAISS, and questions with their
    probes.
    """

    def __init__(self, view: IndexView, questions: Path, options: LoneOptions) -> None:
        """Reads the whole index. Raises `ConfigError` where the questions are too few, or of
        another dimension.
        """
        count = options.warm_up + options.queries
        asked = read_asked([questions])
        chosen = choose_questions(
            asked.vectors, view.dimension, count, options.seed, asked.left_out
        )
        self.queries: Float32 = chosen.vectors[:count]
        self.probes: Int64 = probes_of(view, chosen, options.nprobe)[:count].astype(np.int64)
        self._row_counts = np.array([extent.row_count for extent in view.extents])
        self._quantizer = faiss.IndexFlatIP(view.dimension)  # kept: the IVF index does not own it
        self._quantizer.add(np.ascontiguousarray(view.centroids))
        self._ivf: Any = faiss.IndexIVFFlat(
            self._quantizer, view.dimension, view.nlist, faiss.METRIC_INNER_PRODUCT
        )
        self._ivf.is_trained, self._ivf.nprobe, self._ivf.ntotal = (
            True,
            options.nprobe,
            view.row_count,
        )
        lists: Any = self._ivf.invlists
        for cluster in view.clusters():
            vectors = np.ascontiguousarray(cluster.vectors).view(np.uint8).reshape(-1)
            rows = np.ascontiguousarray(cluster.rows)
            lists.add_entries(
                cluster.cluster, len(rows), faiss.swig_ptr(rows), faiss.swig_ptr(vectors)
            )
        self._ivf.make_direct_map()

    def faiss_search(self, vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
        """The best rows as FAISS finds them."""
        return faiss_search(self._ivf, vector, clusters, top_k)

    def rows_scanned(self) -> list[int]:
        """The rows in the clusters of each query."""
        return [int(self._row_counts[clusters].sum()) for clusters in self.probes]

    def true_scores(self, query: Float32, rows: Int64) -> Float32:
        """The scores of `rows` for `query`, summed in float64."""
        vectors = np.stack([self._ivf.reconstruct(row) for row in rows.tolist()])
        scores: Float32 = (vectors.astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
        return scores


def run_on_index(index_dir: Path, questions: Path, options: LoneOptions) -> LoneReport:
    """Measures the executor beside FAISS. Blocks; needs twice the bytes of the vectors.

    `questions`: a .npy file of vectors, by the model of the index. Raises `ConfigError`,
    `CorruptionError`.
    """
    view = open_view(index_dir)
    options = msgspec.structs.replace(
        options, rows=view.row_count, dimension=view.dimension, nlist=view.nlist
    )
    what = f"{view.row_count:,} x {view.dimension} vectors of {index_dir.name}"
    return measure_all(
        what, IndexData(view, questions, options), options, executor_searches(index_dir, options)
    )


@contextmanager
def executor_searches(index_dir: Path, options: LoneOptions) -> Iterator[Mapping[str, Search]]:
    """Yields the search by the executor, as the searcher's settings make it by default, with every
    cluster in memory.
    """
    index = open_index(index_dir)
    index.close()
    size_bytes = sum(extent.size_bytes for extent in index.extents)
    settings = SearcherSettings(
        budget_bytes=size_bytes + size_bytes // 4 + (64 << 20),  # extents take whole blocks
        scoring_threads=options.threads,
        read_timeout_ms=int(LOAD_TIMEOUT_S * 1_000),
    )
    plane = open_search_plane(index, settings, Metrics(), SystemClock(), events=NoEvents())
    try:
        with Asking(plane) as asking:
            asking.load(np.zeros(index.manifest.dimension, np.float32), index.manifest.nlist)
            yield {CARPOOL: asking}
    finally:
        plane.close()


class Asking:
    """A `Search` by an executor: one query joins, and its result comes back, each from one thread
    to another.
    """

    def __init__(self, plane: SearchPlane) -> None:
        self._executor = plane.executor
        self._found: queue.SimpleQueue[SearchResult | BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._next_key = 0

    def load(self, vector: Float32, nlist: int) -> None:
        """Has every cluster read: none is evicted, for all fit."""
        self._ask(vector, tuple(map(ClusterId, range(nlist))), 1, LOAD_TIMEOUT_S)

    def __call__(self, vector: Float32, clusters: Int64, top_k: int) -> tuple[Float32, Int64]:
        found = self._ask(vector, tuple(map(ClusterId, clusters.tolist())), top_k, ANSWER_TIMEOUT_S)
        if found.bytes_read:
            raise RuntimeError(
                f"{found.bytes_read} bytes were read for a query whose clusters were in memory"
            )
        return found.best.scores, found.best.rows

    def _ask(
        self, vector: Float32, clusters: tuple[ClusterId, ...], top_k: int, timeout_s: float
    ) -> SearchResult:
        asked = Asked(key=self._next_key, vector=vector, clusters=clusters, top_k=top_k)
        self._executor.join(SearchGroup(searches=(asked,), window=self._next_key))
        self._next_key += 1
        found = self._found.get(timeout=timeout_s)
        if isinstance(found, BaseException):
            raise found
        if found is None or found.skipped:
            raise RuntimeError(f"clusters were skipped: {found and found.errors}")
        return found

    def _run(self) -> None:
        try:
            self._executor.run(lambda asked, found: self._found.put(found))
        except BaseException as error:  # told by the thread that waits
            self._found.put(error)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._executor.stop()
        self._thread.join(10)
