"""Exact rows in a memory-mapped file, to re-rank what codes propose.

The kernel reads a page when it is touched. So that reads do not wait for each other, the pages of
the next candidates are asked for before those of the present ones are scored.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.search.contestants.contestant import Float32, Int64
from carpool.disk.document_rows import place_count
from carpool.disk.index import OpenIndex

ASKED_ROWS = 2048
"""Candidates whose pages are asked for together, at least those of one query. Twice as many are in
flight or being scored: at most 16 MiB of pages, for rows of up to a page."""


def write_rows(index: OpenIndex, path: Path) -> None:
    """Writes the row of each number at its place: (place_count, dim) float32, zero where none is.

    Reads the index once; needs memory for one cluster.
    """
    from bench.data.clusters import read_clusters

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
        none.
        """
        step = max(1, ASKED_ROWS // candidates.shape[1])
        self._ask_for(candidates[:step])
        for start in range(0, len(queries), step):
            stop = start + step
            self._ask_for(candidates[stop : stop + step])
            proposed = candidates[start:stop]
            scores = self._scores(queries[start:stop], proposed)
            for rows, of_rows in zip(proposed, scores, strict=True):
                there = rows >= 0
                yield best_rows(rows[there], of_rows[there], top_k)

    def close(self) -> None:
        """Unmaps the file."""
        del self._rows
        self._map.close()

    def _scores(self, queries: Float32, candidates: Int64) -> Float32:
        """Returns the exact scores of candidates: (n, count) float32. In FAISS's threads."""
        import faiss

        vectors = np.ascontiguousarray(queries, dtype=np.float32)
        rows = np.ascontiguousarray(candidates, dtype=np.int64)
        scores = np.empty(rows.shape, np.float32)
        pointer = faiss.swig_ptr
        faiss.fvec_inner_products_by_idx(  # type: ignore[attr-defined]  # not in its stubs
            pointer(scores),
            pointer(vectors),
            pointer(self._rows),
            pointer(rows),
            self._rows.shape[1],
            *rows.shape,
        )
        return scores

    def _ask_for(self, candidates: Int64) -> None:
        """Makes the kernel read the pages of rows, without waiting for them."""
        row_bytes = self._rows.shape[1] * self._rows.itemsize
        for start in (np.unique(candidates[candidates >= 0]) * row_bytes).tolist():
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, page, start + row_bytes - page)


def best_rows(rows: Int64, scores: Float32, top_k: int) -> Int64:
    """Returns the `top_k` of `rows` with the best `scores`, best first; ties by number. Pure."""
    order = np.lexsort((rows, -scores))
    best: Int64 = rows[order[:top_k]]
    return best
