"""Exact rows in a memory-mapped file, to re-rank what codes propose.

The kernel reads a page when it is touched. So that reads do not wait for each other, the pages of
all candidates of a window are asked for before the first of them are scored.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.data.clusters import read_clusters
from bench.search.contestants.contestant import Float32, Int64
from carpool.disk.document_rows import place_count
from carpool.disk.index import OpenIndex


def write_rows(index: OpenIndex, path: Path) -> None:
    """Writes the row of each number at its place: (place_count, dim) float32, zero where none is.

    Reads the index once; needs memory for one cluster.
    """
    shape = (place_count(index.layout, index.extents), index.manifest.dimension)
    mapped = np.memmap(path, dtype="<f4", mode="w+", shape=shape)
    for cluster in read_clusters(index):
        mapped[cluster.rows] = cluster.vectors
    mapped.flush()


class MappedRows:
    """The rows of a file of `write_rows`. Not thread-safe."""

    def __init__(self, path: Path, dimension: int) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._map.madvise(mmap.MADV_RANDOM)  # else the kernel reads 128 KiB for a row
        self._rows = np.frombuffer(self._map, dtype="<f4").reshape(-1, dimension)

    def rank(self, queries: Float32, candidates: Int64, top_k: int) -> Iterator[Int64]:
        """Yields the best `top_k` candidates of each query by exact score, best first. Blocks.

        `queries`: (n, dim) float32; `candidates`: (n, count) int64 row numbers, -1 where there is
        none. Ties are in the order of the numbers.
        """
        row_bytes = self._rows.shape[1] * self._rows.itemsize
        for start in (np.unique(candidates[candidates >= 0]) * row_bytes).tolist():
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, page, start + row_bytes - page)
        for query, proposed in zip(queries, candidates, strict=True):
            rows = proposed[proposed >= 0]
            yield rows[np.lexsort((rows, -(self._rows[rows] @ query)))[:top_k]]
