"""FAISS with RaBitQ codes of our clusters, re-ranked with exact rows in a memory-mapped file.

No code is in memory: it shows what the kernel's page cache does for codes that do not fit.
Centroids, rotation and probes are those of our index.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines.contestant import (
    ContestantEntry,
    Float32,
    Int64,
    Limits,
    Preparation,
    SearchData,
)
from bench.baselines.faiss_ivf import RowList, write_lists
from bench.baselines.faiss_window import FaissWindow
from bench.baselines.mapped_rows import MappedRows, write_rows
from carpool.disk.index import OpenIndex

PREPARATION_NAME = "faiss-codes"
ROWS_NAME = "rows.f32"
ROTATION_NAME = "rotation.npy"
INDEX_NAME = "lists-4.faiss"
BITS = 4
CANDIDATES = 25
"""Rows that are re-ranked for a top 10; for another top they are in proportion."""
QUERY_BITS = 8
"""Bits for each number of a query. More than FAISS's 4 for codes that are not FastScan: it finds
more, and takes as long."""


def make_files(data: SearchData, folder: Path) -> None:
    """Writes the rows and the codes. Reads the index twice; needs memory for one cluster."""
    from bench.data.clusters import open_clusters
    from indexer.write import rotation_of

    view = open_clusters(data.index_dir)
    rotation = rotation_of(view.manifest.dimension)  # that of our codes, which it may not have
    np.save(folder / ROTATION_NAME, rotation)
    write_rows(view, folder / ROWS_NAME)
    make_lists(view, rotation, folder)


def make_lists(view: OpenIndex, rotation: Float32, folder: Path) -> None:
    """Writes an index whose lists, row after row, are a file of their own."""
    import faiss

    centroids = np.ascontiguousarray(view.centroids @ rotation)
    nlist, dimension = centroids.shape
    index: Any = faiss.IndexIVFRaBitQ(
        _quantizer(centroids), dimension, nlist, faiss.METRIC_INNER_PRODUCT, True, BITS
    )
    index.is_trained = True  # there is nothing to train
    lists = write_lists(
        (folder / INDEX_NAME).with_suffix(".ivfdata"),
        nlist,
        index.code_size,
        _encoded(index, view, rotation),
    )
    index.ntotal = view.manifest.row_count
    index.replace_invlists(lists)
    faiss.write_index(index, str(folder / INDEX_NAME))


def _encoded(index: Any, view: OpenIndex, rotation: Float32) -> Iterator[RowList]:
    """Yields the codes of each cluster."""
    import faiss

    from bench.data.clusters import read_clusters

    pointer = faiss.swig_ptr
    for cluster in read_clusters(view):
        count = len(cluster.rows)
        codes = np.zeros((count, index.code_size), np.uint8)
        vectors = np.ascontiguousarray(cluster.vectors @ rotation)
        assigned = np.full(count, cluster.cluster, np.int64)
        if count:
            index.encode_vectors(count, pointer(vectors), pointer(assigned), pointer(codes), False)
        yield RowList(cluster.cluster, codes, cluster.rows)


def _quantizer(centroids: Float32) -> Any:
    import faiss

    quantizer = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids)
    return quantizer


class FaissCodes(FaissWindow):
    """A scan of codes that proposes `CANDIDATES` for a top 10, and their exact rows."""

    _rows: MappedRows | None = None

    def open(self, data: SearchData, limits: Limits) -> None:
        """Maps the codes and the rows."""
        super().open(data, limits)
        folder = data.prepared_dir / PREPARATION_NAME
        self._index.qb = QUERY_BITS
        self._rotation = np.load(folder / ROTATION_NAME, allow_pickle=False)
        self._rows = MappedRows(folder / ROWS_NAME, len(self._rotation))

    def close(self) -> None:
        """Frees the codes and unmaps the rows."""
        super().close()
        if self._rows is not None:
            self._rows.close()

    def _path(self, data: SearchData) -> Path:
        return data.prepared_dir / PREPARATION_NAME / INDEX_NAME

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
        name="mmap-codes",
        summary=f"FAISS IVF-RaBitQ, {BITS} bits in OnDiskInvertedLists (mmap), a call for each "
        f"window; {CANDIDATES} rows (mmap) re-ranked for a top 10",
        is_exact=False,
        make=FaissCodes,
        preparation=Preparation(name=PREPARATION_NAME, make=make_files),
    ),
)
