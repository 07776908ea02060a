"""Exact rows in a memory-mapped file, to re-rank what codes propose.

The kernel reads a page when it is touched. So that reads do not wait for each other, the pages of
all candidates of a window are asked for before the first of them are scored.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from bench.search.contestants.contestant import TOP_K
from carpool.arrays import Float32, Int64


class MappedRows:
    """The rows of a .npy file of floats."""

    def __init__(self, path: Path) -> None:
        self._rows = np.load(path, mmap_mode="r", allow_pickle=False)
        self._map: mmap.mmap = self._rows._mmap
        self._first = self._rows.offset % mmap.ALLOCATIONGRANULARITY  # a map begins at a page
        self._map.madvise(mmap.MADV_RANDOM)  # else the kernel reads 128 KiB for a row

    def rank(self, queries: Float32, candidates: Int64) -> Int64:
        """Returns the best `TOP_K` candidates of each query by exact score, best first. Blocks.

        `queries`: (n, dim) float32; `candidates`: (n, count) int64 row numbers, -1 where there is
        none. Ties are in the order of the numbers. Returns (n, TOP_K) int64, -1 where none.
        """
        row_bytes = self._rows.shape[1] * self._rows.itemsize
        for row in np.unique(candidates[candidates >= 0]).tolist():
            start = self._first + row * row_bytes
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, page, start + row_bytes - page)
        found = np.full((len(queries), TOP_K), -1, np.int64)
        for best, query, proposed in zip(found, queries, candidates, strict=True):
            rows = proposed[proposed >= 0]
            scores = self._rows[rows].astype(np.float32) @ query
            rows = rows[np.lexsort((rows, -scores))[:TOP_K]]
            best[: len(rows)] = rows
        return found
