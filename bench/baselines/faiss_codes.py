"""FAISS with RaBitQ codes of our clusters, re-ranked with exact rows in a memory-mapped file.

`faiss-rq1` and `faiss-rq5` hold the codes in memory, as FastScan arranges them. `mmap-codes` has no
code in memory: it shows what the kernel's page cache does for codes that do not fit. Centroids,
rotation and probes are those of our index.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
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
CANDIDATES_FOR = 10
"""The top_k that `candidates` of a contestant are for; for another one they are in proportion."""
QUERY_BITS = 8
"""Bits for each number of a query. More than FAISS's 4 for codes that are not FastScan: it finds
more, and takes as long."""
NEAREST_FIRST = 10
"""FAISS's scan of one query at a time; faster here than its scans of many queries at a time."""
BLOCK_ROWS = 32


def index_name(bits: int, *, in_memory: bool) -> str:
    """Returns the file of an index with codes of `bits`."""
    return f"{'fastscan' if in_memory else 'lists'}-{bits}.faiss"


def make_files(data: SearchData, folder: Path) -> None:
    """Writes the rows once, and the codes of every contestant.

    Reads the index once for each; needs memory for one cluster, and FAISS holds the codes.
    """
    from bench.data.clusters import open_clusters
    from indexer.write import rotation_of

    view = open_clusters(data.index_dir)
    rotation = rotation_of(view.manifest.dimension)  # that of our codes, which it may not have
    np.save(folder / ROTATION_NAME, rotation)
    write_rows(view, folder / ROWS_NAME)
    for _, bits, _, in_memory, _ in _CONTESTANTS:
        make = make_fastscan if in_memory else make_lists
        make(view, rotation, bits, folder)


def make_fastscan(view: OpenIndex, rotation: Float32, bits: int, folder: Path) -> None:
    """Writes an index with the codes of all rows in blocks of 32."""
    import faiss

    from bench.data.clusters import read_clusters

    centroids = np.ascontiguousarray(view.centroids @ rotation)
    index = _fastscan(centroids, bits)
    lists: Any = faiss.downcast_InvertedLists(index.invlists)
    for cluster in read_clusters(view):
        count = len(cluster.rows)
        if not count:
            continue
        # One list with one centroid: FAISS then cannot put a row into another cluster.
        one = _fastscan(centroids[cluster.cluster : cluster.cluster + 1], bits)
        one.add(np.ascontiguousarray(cluster.vectors @ rotation))
        encoded: Any = faiss.downcast_InvertedLists(one.invlists)
        size_bytes = -(-count // encoded.n_per_block) * encoded.block_size
        rows = np.ascontiguousarray(cluster.rows, dtype=np.int64)
        lists.resize(cluster.cluster, count)
        faiss.memcpy(lists.get_codes(cluster.cluster), encoded.get_codes(0), size_bytes)
        faiss.memcpy(lists.get_ids(cluster.cluster), faiss.swig_ptr(rows), rows.nbytes)
    index.ntotal = view.manifest.row_count
    faiss.write_index(index, str(folder / index_name(bits, in_memory=True)))


def make_lists(view: OpenIndex, rotation: Float32, bits: int, folder: Path) -> None:
    """Writes an index whose lists, row after row, are a file of their own."""
    import faiss

    centroids = np.ascontiguousarray(view.centroids @ rotation)
    nlist, dimension = centroids.shape
    index: Any = faiss.IndexIVFRaBitQ(
        _quantizer(centroids), dimension, nlist, faiss.METRIC_INNER_PRODUCT, True, bits
    )
    index.is_trained = True  # there is nothing to train
    name = index_name(bits, in_memory=False)
    lists = write_lists(
        (folder / name).with_suffix(".ivfdata"),
        nlist,
        index.code_size,
        _encoded(index, view, rotation),
    )
    index.ntotal = view.manifest.row_count
    index.replace_invlists(lists)
    faiss.write_index(index, str(folder / name))


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


def _fastscan(centroids: Float32, bits: int) -> Any:
    """Returns an index over `centroids`, (nlist, dim) float32, rotated; its lists are empty."""
    import faiss

    nlist, dimension = centroids.shape
    index: Any = faiss.IndexIVFRaBitQFastScan(
        _quantizer(centroids), dimension, nlist, faiss.METRIC_INNER_PRODUCT, BLOCK_ROWS, True, bits
    )
    index.is_trained = True  # there is nothing to train
    return index


class FaissCodes(FaissWindow):
    """A scan of codes that proposes `candidates` for a top 10, and their exact rows.

    `in_memory`: the codes are loaded by `open`; else the kernel pages them in, as it does the rows.
    """

    def __init__(self, *, bits: int, candidates: int, in_memory: bool) -> None:
        self._bits = bits
        self._candidates = candidates
        self._in_memory = in_memory
        self._rows: MappedRows | None = None

    def open(self, data: SearchData, limits: Limits) -> None:
        """Loads or maps the codes, and maps the rows."""
        super().open(data, limits)
        folder = data.prepared_dir / PREPARATION_NAME
        self._index.qb = QUERY_BITS
        if self._in_memory:
            self._index.implem = NEAREST_FIRST
        self._rotation = np.load(folder / ROTATION_NAME, allow_pickle=False)
        self._rows = MappedRows(folder / ROWS_NAME, len(self._rotation))

    def close(self) -> None:
        """Frees the codes and unmaps the rows."""
        super().close()
        if self._rows is not None:
            self._rows.close()

    def _path(self, data: SearchData) -> Path:
        name = index_name(self._bits, in_memory=self._in_memory)
        return data.prepared_dir / PREPARATION_NAME / name

    def _find(self, vectors: Float32, probes: Int64) -> Iterator[Int64]:
        assert self._rows is not None
        count = -(-self._candidates * self._top_k // CANDIDATES_FOR)
        rotated = np.ascontiguousarray(vectors @ self._rotation)
        self._index.nprobe = probes.shape[1]
        # FAISS computes with residuals and does not read these scores of centroids.
        unread = np.zeros(probes.shape, np.float32)
        _, proposed = self._index.search_preassigned(rotated, count, probes, unread)
        return self._rows.rank(vectors, proposed, self._top_k)


_CONTESTANTS = (
    ("faiss-rq1", 1, 400, True, "in memory (FastScan)"),
    ("faiss-rq5", 5, 16, True, "in memory (FastScan)"),
    ("mmap-codes", 4, 25, False, "in OnDiskInvertedLists (mmap)"),
)
"""Name, bits, candidates for a top 10, whether the codes are in memory, and where they are."""
PREPARATION = Preparation(name=PREPARATION_NAME, make=make_files)
ENTRIES = tuple(
    ContestantEntry(
        name=name,
        summary=f"FAISS IVF-RaBitQ, {bits} bit{'s' * (bits > 1)} {where}, a call for each window; "
        f"{candidates} rows (mmap) re-ranked for a top 10",
        is_exact=False,
        make=partial(FaissCodes, bits=bits, candidates=candidates, in_memory=in_memory),
        preparation=PREPARATION,
    )
    for name, bits, candidates, in_memory, where in _CONTESTANTS
)
