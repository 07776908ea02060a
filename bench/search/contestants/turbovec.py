"""turbovec: codes of 4 bits of all rows in memory, and rows of a mapped file re-ranked."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.search.contestants.contestant import (
    CHUNK_ROWS,
    Float32,
    Int64,
    SearchData,
    ladder,
    rows_of,
)
from bench.search.contestants.mapped_rows import MappedRows

BITS = 4
INDEX_NAME = "index.tv"
SAMPLE_ROWS = 4096
"""Uniform random rows that calibrate the codes; turbovec says that 1,024 do."""


def make(name: str) -> Turbovec:
    """Returns the contestant."""
    return Turbovec()


class Turbovec:
    """A scan of all codes; the setting is how many rows are re-ranked."""

    settings = ladder(10, 1000)

    def build(self, data: SearchData) -> None:
        """Encodes the rows."""
        from turbovec import TurboQuantIndex

        stored = np.load(data.vectors, mmap_mode="r", allow_pickle=False)
        made: Any = TurboQuantIndex(dim=stored.shape[1], bit_width=BITS)
        sample = np.random.default_rng(0).permutation(len(stored))[:SAMPLE_ROWS]
        made.calibrate(np.ascontiguousarray(stored[np.sort(sample)], "<f4"))
        for start in range(0, len(stored), CHUNK_ROWS):
            made.add(rows_of(data.vectors, start, CHUNK_ROWS))
        made.write(str(data.prepared / INDEX_NAME))

    def open(self, data: SearchData) -> None:
        """Loads the codes, and maps the rows."""
        from turbovec import TurboQuantIndex

        self._index: Any = TurboQuantIndex.load(str(data.prepared / INDEX_NAME))
        self._index.prepare()
        self._rows, self._top_k = MappedRows(data.vectors), data.top_k

    def search(self, queries: Float32, setting: int) -> Int64:
        """Scans the window in one call, and re-ranks."""
        _, proposed = self._index.search(queries, setting)
        return self._rows.rank(queries, proposed.astype(np.int64), self._top_k)

    def close(self) -> None:
        """Frees the codes."""
        self._index = None
