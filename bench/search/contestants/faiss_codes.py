"""FAISS with RaBitQ codes of our clusters in memory, re-ranked with rows in a mapped file.

Centroids, rotation and probes are those of our index.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.search.contestants.contestant import (
    ContestantEntry,
    Float32,
    Int64,
    Limits,
    SearchData,
)
from bench.search.contestants.faiss_window import INDEX_NAME, FaissWindow, quantizer_of
from bench.search.contestants.mapped_rows import MappedRows, write_rows

ROWS_NAME = "rows.f32"
ROTATION_NAME = "rotation.npy"
BITS = 5
CANDIDATES = 16
"""Rows that are re-ranked for a top 10; for another top_k in proportion."""
QUERY_BITS = 8
"""Bits for each number of a query."""
NEAREST_FIRST = 10
"""FAISS's scan of one query at a time; faster here than its scans of many queries at a time."""
BLOCK_ROWS = 32


def make_files(data: SearchData, folder: Path) -> None:
    """Writes the rows, and an index with their codes in blocks of 32, as FastScan arranges them.

    Reads the index twice; needs memory for one cluster, and FAISS holds the codes.
    """
    import faiss

    from bench.data.clusters import open_clusters, read_clusters
    from indexer.write import rotation_of

    view = open_clusters(data.index_dir)
    rotation = rotation_of(view.manifest.dimension)  # that of our codes, which it may not have
    np.save(folder / ROTATION_NAME, rotation)
    write_rows(view, folder / ROWS_NAME)
    centroids = np.ascontiguousarray(view.centroids @ rotation)
    index = _fastscan(centroids)
    lists: Any = faiss.downcast_InvertedLists(index.invlists)
    for cluster in read_clusters(view):
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
    index.ntotal = view.manifest.row_count
    faiss.write_index(index, str(folder / INDEX_NAME))


def _fastscan(centroids: Float32) -> Any:
    """Returns an index over `centroids`, (nlist, dim) float32, rotated; its lists are empty."""
    import faiss

    nlist, dimension = centroids.shape
    quantizer = quantizer_of(centroids)
    index: Any = faiss.IndexIVFRaBitQFastScan(
        quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT, BLOCK_ROWS, True, BITS
    )
    index.is_trained = True  # there is nothing to train
    return index


class FaissCodes(FaissWindow):
    """A scan of codes that proposes `CANDIDATES` for a top 10, and their exact rows."""

    name = "faiss-rabitq"
    _rows: MappedRows | None = None

    def open(self, data: SearchData, limits: Limits) -> None:
        """Loads the codes, and maps the rows."""
        super().open(data, limits)
        self._index.qb = QUERY_BITS
        self._index.implem = NEAREST_FIRST
        folder = data.prepared_dir / self.name
        self._rotation = np.load(folder / ROTATION_NAME, allow_pickle=False)
        self._rows = MappedRows(folder / ROWS_NAME, len(self._rotation))

    def close(self) -> None:
        """Frees the codes and unmaps the rows."""
        super().close()
        if self._rows is not None:
            self._rows.close()

    def _find(self, vectors: Float32, probes: Int64) -> Iterator[Int64]:
        assert self._rows is not None
        count = -(-CANDIDATES * self._top_k // 10)
        rotated = np.ascontiguousarray(vectors @ self._rotation)
        self._index.nprobe = probes.shape[1]
        # FAISS computes with residuals and does not read these scores of centroids.
        unread = np.zeros(probes.shape, np.float32)
        _, proposed = self._index.search_preassigned(rotated, count, probes, unread)
        return self._rows.rank(vectors, proposed, self._top_k)


ENTRIES = (
    ContestantEntry(
        name=FaissCodes.name,
        is_exact=False,
        make=FaissCodes,
        prepare=make_files,
    ),
)
