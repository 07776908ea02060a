"""USearch: a graph (HNSW) over rows of 8 bits a number, all in memory.

The rows that it proposes are re-ranked by rows of a mapped file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.search.contestants.contestant import (
    CHUNK_ROWS,
    THREADS,
    Float32,
    Int64,
    SearchData,
    ladder,
    rows_of,
)
from bench.search.contestants.mapped_rows import MappedRows

INDEX_NAME = "index.usearch"
CANDIDATES = 30
"""Rows that are re-ranked for a top 10; for another top_k in proportion."""


def make(name: str) -> USearch:
    """Returns the contestant."""
    return USearch()


class USearch:
    """A walk through the graph for each query; the setting is `expansion_search` (ef)."""

    settings = ladder(CANDIDATES, 3000)

    def build(self, data: SearchData) -> None:
        """Builds the graph by USearch's defaults."""
        from usearch.index import Index

        stored = np.load(data.vectors, mmap_mode="r", allow_pickle=False)
        made: Any = Index(ndim=stored.shape[1], metric="ip", dtype="i8")
        for start in range(0, len(stored), CHUNK_ROWS):
            rows = rows_of(data.vectors, start, CHUNK_ROWS)
            made.add(np.arange(start, start + len(rows)), rows, threads=THREADS)
        made.save(str(data.prepared / INDEX_NAME))

    def open(self, data: SearchData) -> None:
        """Loads the graph, and maps the rows."""
        from usearch.index import Index

        self._index: Any = Index.restore(str(data.prepared / INDEX_NAME))
        self._rows, self._top_k = MappedRows(data.vectors), data.top_k

    def search(self, queries: Float32, setting: int) -> Int64:
        """Answers the window in one call, and re-ranks."""
        self._index.expansion_search = setting
        count = -(-CANDIDATES * self._top_k // 10)
        found = self._index.search(queries, count, threads=min(THREADS, len(queries)))
        keys = found.keys.reshape(len(queries), -1).astype(np.int64)
        return self._rows.rank(queries, keys, self._top_k)

    def close(self) -> None:
        """Frees the graph."""
        self._index = None
