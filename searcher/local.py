"""Search of an index folder within one process: no Kafka, no services.

`LocalSearcher` searches vectors or texts and blocks. `SearchThread` is the layer below it: it runs
the executor of a search plane for callers that have their own clusters and their own windows.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from msgspec import structs
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from carpool.arrays import Float32
from carpool.clock import SystemClock
from carpool.disk.centroids import probe
from carpool.disk.index import open_index
from carpool.disk.manifest import Manifest
from carpool.embedding import Embedder, EmbeddingSettings
from carpool.embedding.loader import load_question_embedder
from carpool.errors import ReadError
from carpool.telemetry.metrics import Metrics
from schemas.query import TOP_K_MAX, SearchMode
from schemas.record import ClusterId, well_formed
from schemas.retrieval import Hit
from searcher.build import SearchPlane, search_and_passages
from searcher.executor import Search, SearchGroup, SearchResult, hits_of
from searcher.settings import SearcherSettings

CLOSE_TIMEOUT_S = 10.0


class LocalResult(NamedTuple):
    """The result of one query: `hits`, best first. Unreadable clusters were skipped."""

    hits: tuple[Hit, ...]
    skipped_clusters: tuple[ClusterId, ...]
    errors: tuple[ReadError, ...]


class LocalSearcher:
    """Searches one index. Thread-safe; calls are searched one after the other.

    Sets BLAS to one thread in the whole process while it is open. After a fork it works in the
    child, too: the first search there opens a plane and a model of its own.
    """

    def __init__(
        self,
        index_dir: str | Path,
        *,
        budget_bytes: int | None = None,
        nprobe: int | None = None,
        embedding: EmbeddingSettings | None = None,
        settings: SearcherSettings | None = None,
    ) -> None:
        """Opens the index at `index_dir`; at most `budget_bytes` of it are in memory.

        `nprobe` clusters are searched for each query; None: as many as the index recommends.
        `embedding`: the model for texts; None: the one that the index names. Raises `ConfigError`
        where there is no index or the budget does not hold its largest slice, and
        `CorruptionError` where the index is damaged.
        """
        settings = settings if settings is not None else SearcherSettings(direct_io="auto")
        if budget_bytes is not None:
            settings = structs.replace(settings, budget_bytes=budget_bytes)
        self._settings = settings
        self._locks: dict[int, threading.Lock] = {}
        self._index = open_index(Path(index_dir))
        manifest = self._index.manifest
        self._nprobe = manifest.nprobe_default if nprobe is None else nprobe
        self._embedding = embedding or EmbeddingSettings(model=manifest.embedding_model_name)
        self._next_key = 0
        try:
            _check_range("nprobe", self._nprobe, manifest.nlist)
            self._begin()
        except BaseException:
            self._index.close()
            raise

    def _begin(self) -> None:
        """Opens what has threads, which a fork does not copy."""
        opened = search_and_passages(self._index, self._settings, Metrics(), SystemClock())
        self._passages = opened.passages
        self._thread: SearchThread | None = SearchThread(opened.plane)
        self._embedder: Embedder | None = None
        self._pid = os.getpid()

    @property
    def _lock(self) -> threading.Lock:
        """The lock of this process: that of a parent may be locked in the child for ever."""
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def search(
        self,
        queries: Float32 | Sequence[str],
        *,
        top_k: int = 10,
        nprobe: int | None = None,
        mode: SearchMode | None = None,
    ) -> list[LocalResult]:
        """Returns the best `top_k` passages of each query, in the order of the queries. Blocks.

        `mode`: what is promised (`schemas.query.SearchMode`); None: as the settings say. `queries`:
        (n, dim) float32 vectors of the index's model, or texts; the model is loaded with
        the first texts. Raises `ValueError` for queries that do not fit the index and after
        `close`, `ConfigError` where the model is not that of the index, and `CorruptionError` or
        `RetryableError` where a passage cannot be read.
        """
        _check_range("top_k", top_k, TOP_K_MAX)
        count = self._nprobe if nprobe is None else nprobe
        _check_range("nprobe", count, self._index.manifest.nlist)
        with self._lock:
            if self._thread is None:
                raise ValueError("the searcher is closed")
            if self._pid != os.getpid():
                self._begin()
            vectors = self._vectors(queries)
            clusters = probe(self._index.centroids, vectors, count)
            zero_clusters = self._index.manifest.zero_clusters
            searches = tuple(
                Search(
                    key=self._next_key + number,
                    vector=vector,
                    clusters=tuple(map(ClusterId, (*clusters[number].tolist(), *zero_clusters))),
                    top_k=top_k,
                    mode=mode or self._settings.search_mode,
                )
                for number, vector in enumerate(vectors)
            )
            self._next_key += len(searches)
            results = self._thread.search(SearchGroup(searches=searches))
            return self._with_passages(results)

    @property
    def manifest(self) -> Manifest:
        """What the index says of itself."""
        return self._index.manifest

    def close(self) -> None:
        """Ends its threads and frees the memory. Blocks. Closing twice is harmless."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            thread.close()
            self._passages.close()
            self._index.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes."""
        self.close()

    def _vectors(self, queries: Float32 | Sequence[str]) -> Float32:
        if isinstance(queries, str):
            raise ValueError("queries is one text; pass a list of texts")
        if not isinstance(queries, np.ndarray):
            return self._model().encode([well_formed(text) for text in queries])
        dimension = self._index.manifest.dimension
        if queries.ndim != 2 or queries.shape[1] != dimension:
            raise ValueError(f"queries has shape {queries.shape}; the index needs (n, {dimension})")
        vectors = np.ascontiguousarray(queries, dtype=np.float32)
        if not np.isfinite(vectors).all():
            raise ValueError("queries has values that are not finite")
        return vectors

    def _model(self) -> Embedder:
        if self._embedder is None:
            self._embedder = load_question_embedder(self._embedding, self._index.manifest)
        return self._embedder

    def _with_passages(self, results: Sequence[SearchResult]) -> list[LocalResult]:
        passages = dict(self._passages.read([result.best.rows.tolist() for result in results]))
        found = []
        for position, result in enumerate(results):
            read = passages[position]
            if isinstance(read, ReadError):
                raise read
            found.append(LocalResult(hits_of(result.best, read), result.skipped, result.errors))
        return found


class SearchThread:
    """Runs the executor of `plane` on a thread. It owns the plane: `close` closes it.

    For one calling thread. Keys of searches must grow.
    """

    def __init__(self, plane: SearchPlane) -> None:
        self.plane = plane
        self._finished: queue.SimpleQueue[tuple[Search, SearchResult | None] | BaseException] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._thread.start()

    def join(self, group: SearchGroup) -> None:
        """Adds a group. Does not block."""
        self.plane.executor.join(group)

    def take(self, timeout_s: float | None = None) -> tuple[Search, SearchResult | None]:
        """Returns a finished search; blocks until there is one. An expired search has result None.

        Raises `TimeoutError` after `timeout_s`, and the error that ended the executor.
        """
        try:
            finished = self._finished.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no search finished within {timeout_s} s") from None
        if isinstance(finished, BaseException):
            raise finished
        return finished

    def search(self, group: SearchGroup) -> list[SearchResult]:
        """Returns the result of each search of `group`, in order; none may be in progress. Blocks.

        No search of `group` may have a deadline. Raises what `take` raises.
        """
        self.join(group)
        results: dict[int, SearchResult] = {}
        for _ in group.searches:
            search, result = self.take()
            assert result is not None, "a search without a deadline expired"
            results[search.key] = result
        return [results[search.key] for search in group.searches]

    def close(self) -> None:
        """Stops the executor, then closes the plane. Blocks."""
        self.plane.executor.stop()
        self._thread.join(CLOSE_TIMEOUT_S)
        self.plane.close()

    def _run(self) -> None:
        try:
            with threadpool_limits(limits=1, user_api="blas"):
                self.plane.executor.run(lambda search, result: self._finished.put((search, result)))
        except BaseException as error:  # raised by `take`, on the thread that waits
            self._finished.put(error)


def _check_range(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ValueError(f"{name} is {value}; it must be from 1 to {most}")
