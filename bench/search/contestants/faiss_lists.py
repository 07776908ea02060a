"""FAISS, clustered by itself: `faiss-memory` has the vectors in memory (IVF-Flat).

`faiss-rabitq` has RaBitQ codes of 4 bits in memory (FastScan), and re-ranks with rows of a mapped
file.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.search.contestants import contestant as seam
from bench.search.contestants.contestant import Contestant, SearchData
from bench.search.contestants.mapped_rows import MappedRows
from carpool.arrays import Float32, Int64
from indexer.kmeans import faiss

INDEX_NAME, ROTATION_NAME = "index.faiss", "rotation.npy"
BITS = 4
CANDIDATES = 22
"""Rows that are re-ranked."""
QUERY_BITS = 8
"""Bits for each number of a query."""
NEAREST_FIRST = 10
"""FAISS's scan of one query at a time; faster here than its scans of many queries at a time."""
BLOCK_ROWS = 32
ROWS_A_CLUSTER = 64
"""Rows that train a cluster: a quarter of FAISS's default, for as much recall."""


class FaissVectors(Contestant):
    """A scan of the vectors of the probed clusters: a call of FAISS for each window."""

    def build(self, data: SearchData) -> None:
        """Clusters the rows, four times the square root of their number, and adds them."""
        count, dimension = seam.shape_of(data.vectors)
        nlist = 4 * math.isqrt(count)
        made = self._made(dimension, nlist, data)
        made.cp.max_points_per_centroid = ROWS_A_CLUSTER
        made.train(self._turned(seam.sample_of(data.vectors, nlist * ROWS_A_CLUSTER)))
        for _, rows in seam.chunks_of(data.vectors):
            made.add(self._turned(rows))
        faiss.write_index(made, str(data.prepared / INDEX_NAME))

    def open(self, data: SearchData) -> None:
        # Threads of BLAS that wait for more work take the cores from those of FAISS.
        threadpool_limits(limits=1, user_api="blas")
        faiss.omp_set_num_threads(seam.THREADS)
        opened: Any = faiss.read_index(str(data.prepared / INDEX_NAME))
        self._index = opened
        self.settings = seam.ladder(1, self._index.nlist)

    def search(self, queries: Float32, setting: int) -> Int64:
        """Answers the window by one call of FAISS; `setting`: clusters that are scanned."""
        return self._find(queries, setting, seam.TOP_K)

    def _made(self, dimension: int, nlist: int, data: SearchData) -> Any:
        quantizer = faiss.IndexFlatIP(dimension)
        return faiss.IndexIVFFlat(quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT)

    def _turned(self, rows: Float32) -> Float32:
        return rows

    def _find(self, queries: Float32, nprobe: int, count: int) -> Int64:
        self._index.nprobe = nprobe
        found: Int64 = self._index.search(self._turned(queries), count)[1]
        return found


class FaissCodes(FaissVectors):
    """A scan of codes that proposes `CANDIDATES` for a top 10, and their exact rows."""

    def open(self, data: SearchData) -> None:
        super().open(data)
        self._index.qb = QUERY_BITS
        self._index.implem = NEAREST_FIRST
        self._rotation = np.load(data.prepared / ROTATION_NAME, allow_pickle=False)
        self._rows = MappedRows(data.vectors)

    def search(self, queries: Float32, setting: int) -> Int64:
        return self._rows.rank(queries, self._find(queries, setting, CANDIDATES))

    def _made(self, dimension: int, nlist: int, data: SearchData) -> Any:
        random = np.random.default_rng(0).standard_normal((dimension, dimension))
        self._rotation = np.ascontiguousarray(np.linalg.qr(random)[0], "<f4")
        np.save(data.prepared / ROTATION_NAME, self._rotation)
        return faiss.IndexIVFRaBitQFastScan(
            faiss.IndexFlatIP(dimension),
            dimension,
            nlist,
            faiss.METRIC_INNER_PRODUCT,
            BLOCK_ROWS,
            True,
            BITS,
        )

    def _turned(self, rows: Float32) -> Float32:
        return np.ascontiguousarray(rows @ self._rotation)
