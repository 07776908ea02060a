"""USearch: a graph (HNSW) over rows of 8 bits a number, all in memory.

The rows that it proposes are re-ranked by rows of a mapped file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.search.contestants import contestant as seam
from bench.search.contestants.contestant import Contestant, SearchData
from bench.search.contestants.mapped_rows import MappedRows
from carpool.arrays import Float32, Int64

INDEX_NAME = "index.usearch"
CANDIDATES = 30
"""Rows that are re-ranked."""


class USearch(Contestant):
    """A walk through the graph for each query; the setting is `expansion_search` (ef)."""

    settings = seam.ladder(CANDIDATES, 3000)

    def build(self, data: SearchData) -> None:
        from usearch.index import Index

        made: Any = Index(ndim=seam.shape_of(data.vectors)[1], metric="ip", dtype="i8")
        for start, rows in seam.chunks_of(data.vectors):
            made.add(np.arange(start, start + len(rows)), rows, threads=seam.THREADS)
        made.save(str(data.prepared / INDEX_NAME))

    def open(self, data: SearchData) -> None:
        from usearch.index import Index

        self._index: Any = Index.restore(str(data.prepared / INDEX_NAME))
        self._rows = MappedRows(data.vectors)

    def search(self, queries: Float32, setting: int) -> Int64:
        self._index.expansion_search = setting
        found = self._index.search(queries, CANDIDATES, threads=min(seam.THREADS, len(queries)))
        keys = found.keys.reshape(len(queries), -1).astype(np.int64)
        return self._rows.rank(queries, keys)
