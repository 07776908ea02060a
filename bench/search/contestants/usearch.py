"""USearch: a graph (HNSW) over rows of 8 bits a number, all in memory.

The rows that it proposes are re-ranked by rows of a mapped file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.search.contestants import contestant as seam
from bench.search.contestants.contestant import Contestant, Float32, Int64, SearchData
from bench.search.contestants.mapped_rows import MappedRows

INDEX_NAME = "index.usearch"
CANDIDATES = 30
"""Rows that are re-ranked for a top 10; for another top_k in proportion."""


class USearch(Contestant):
    """A walk through the graph for each query; the setting is `expansion_search` (ef)."""

    settings = seam.ladder(CANDIDATES, 3000)

    def build(self, data: SearchData) -> None:
        """Builds the graph by USearch's defaults."""
        from usearch.index import Index

        made: Any = Index(ndim=seam.shape_of(data.vectors)[1], metric="ip", dtype="i8")
        for start, rows in seam.chunks_of(data.vectors):
            made.add(np.arange(start, start + len(rows)), rows, threads=seam.THREADS)
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
        found = self._index.search(queries, count, threads=min(seam.THREADS, len(queries)))
        keys = found.keys.reshape(len(queries), -1).astype(np.int64)
        return self._rows.rank(queries, keys, self._top_k)
