"""FAISS over our clusters: `faiss-memory` has the vectors in memory (IVF-Flat), without a limit.

`faiss-rabitq` has RaBitQ codes in memory, and re-ranks with rows in a mapped file. Centroids,
rotation and probes are those of our index.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.data.clusters import open_clusters, read_clusters
from bench.search.contestants.contestant import (
    THREADS,
    AskedWindow,
    Float32,
    FoundRows,
    Int64,
    SearchData,
)
from bench.search.contestants.mapped_rows import MappedRows, write_rows
from carpool.disk.index import OpenIndex
from indexer.write import rotation_of

INDEX_NAME, ROWS_NAME, ROTATION_NAME = "index.faiss", "rows.f32", "rotation.npy"
BITS = 5
CANDIDATES = 16
"""Rows that are re-ranked for a top 10; for another top_k in proportion."""
QUERY_BITS = 8
"""Bits for each number of a query."""
NEAREST_FIRST = 10
"""FAISS's scan of one query at a time; faster here than its scans of many queries at a time."""
BLOCK_ROWS = 32


def make(name: str) -> FaissVectors:
    """Returns a contestant."""
    return FaissVectors(name) if name == "faiss-memory" else FaissCodes(name)


def prepare(name: str, data: SearchData, folder: Path) -> None:
    """Writes an index with the clusters as its lists, and what codes need beside it.

    FAISS holds all rows, or all codes.
    """
    index = open_clusters(data.index_dir)
    made = _vector_lists(index) if name == "faiss-memory" else _code_lists(index, folder)
    made.ntotal = index.manifest.row_count
    faiss.write_index(made, str(folder / INDEX_NAME))


def _vector_lists(index: OpenIndex) -> Any:
    nlist, dimension = index.centroids.shape
    quantizer = _quantizer_of(index.centroids)
    made: Any = faiss.IndexIVFFlat(quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT)
    made.is_trained = True
    for cluster in read_clusters(index):
        vectors = np.ascontiguousarray(cluster.vectors, "<f4").reshape(-1).view(np.uint8)
        rows = np.ascontiguousarray(cluster.rows, "<i8")
        pointers = faiss.swig_ptr(rows), faiss.swig_ptr(vectors)
        made.invlists.add_entries(cluster.cluster, len(rows), *pointers)
    return made


def _code_lists(index: OpenIndex, folder: Path) -> Any:
    """Returns codes in blocks of 32, as FastScan arranges them; writes rotation and rows."""
    rotation = rotation_of(index.manifest.dimension)  # that of our codes, which it may not have
    np.save(folder / ROTATION_NAME, rotation)
    write_rows(index, folder / ROWS_NAME)
    centroids = np.ascontiguousarray(index.centroids @ rotation)
    made = _fastscan(centroids)
    lists: Any = faiss.downcast_InvertedLists(made.invlists)
    for cluster in read_clusters(index):
        count = len(cluster.rows)
        if not count:
            continue
        # One list with one centroid: FAISS then cannot put a row into another cluster.
        one = _fastscan(centroids[cluster.cluster : cluster.cluster + 1])
        one.add(np.ascontiguousarray(cluster.vectors @ rotation))
        encoded: Any = faiss.downcast_InvertedLists(one.invlists)
        size_bytes = -(-count // encoded.n_per_block) * encoded.block_size
        rows = np.ascontiguousarray(cluster.rows, dtype=np.int64)
        lists.resize(cluster.cluster, count)
        faiss.memcpy(lists.get_codes(cluster.cluster), encoded.get_codes(0), size_bytes)
        faiss.memcpy(lists.get_ids(cluster.cluster), faiss.swig_ptr(rows), rows.nbytes)
    return made


def _fastscan(centroids: Float32) -> Any:
    """Returns an index over `centroids`, (nlist, dim) float32, rotated; its lists are empty."""
    nlist, dimension = centroids.shape
    quantizer = _quantizer_of(centroids)
    made: Any = faiss.IndexIVFRaBitQFastScan(
        quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT, BLOCK_ROWS, True, BITS
    )
    made.is_trained = True  # there is nothing to train
    return made


def _quantizer_of(centroids: Float32) -> Any:
    quantizer = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(np.ascontiguousarray(centroids))
    return quantizer


class FaissVectors:
    """A scan of the vectors of the probed clusters: a call of FAISS for each window."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._index: Any = None
        self._top_k = 0

    def open(self, data: SearchData) -> None:
        """Loads the index."""
        # Threads of BLAS that wait for more work take the cores from those of FAISS.
        threadpool_limits(limits=1, user_api="blas")
        faiss.omp_set_num_threads(THREADS)
        self._index = faiss.read_index(str(data.prepared_dir / self._name / INDEX_NAME))
        self._index.nprobe = data.probes.shape[1]  # which FAISS compares with the shape
        self._top_k = data.top_k

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Answers the window by one call of FAISS."""
        vectors = np.ascontiguousarray(window.vectors)
        found = self._find(vectors, window.probes.astype(np.int64))
        for number, rows in enumerate(found, start=window.first):
            yield FoundRows(number, rows[rows >= 0])

    def close(self) -> None:
        """Frees the index."""
        self._index = None

    def _find(self, vectors: Float32, probes: Int64) -> Iterator[Int64]:
        """Yields the rows of each query, best first, -1 where there are none."""
        _, rows = self._index.search_preassigned(vectors, self._top_k, probes, None)
        return iter(rows)


class FaissCodes(FaissVectors):
    """A scan of codes that proposes `CANDIDATES` for a top 10, and their exact rows."""

    def open(self, data: SearchData) -> None:
        """Loads the codes, and maps the rows."""
        super().open(data)
        self._index.qb = QUERY_BITS
        self._index.implem = NEAREST_FIRST
        folder = data.prepared_dir / self._name
        self._rotation = np.load(folder / ROTATION_NAME, allow_pickle=False)
        self._rows = MappedRows(folder / ROWS_NAME, len(self._rotation))

    def _find(self, vectors: Float32, probes: Int64) -> Iterator[Int64]:
        count = -(-CANDIDATES * self._top_k // 10)
        rotated = np.ascontiguousarray(vectors @ self._rotation)
        # FAISS computes with residuals and does not read these scores of centroids.
        unread = np.zeros(probes.shape, np.float32)
        _, proposed = self._index.search_preassigned(rotated, count, probes, unread)
        return self._rows.rank(vectors, proposed, self._top_k)
