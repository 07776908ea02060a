"""turbovec: codes of 4 bits of all rows in memory, and rows of a mapped file re-ranked."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.search.contestants import contestant as seam
from bench.search.contestants.contestant import Contestant, SearchData
from bench.search.contestants.mapped_rows import MappedRows
from carpool.arrays import Float32, Int64

BITS = 4
INDEX_NAME = "index.tv"
SAMPLE_ROWS = 4096
"""Uniform random rows that calibrate the codes; turbovec says that 1,024 do."""


class Turbovec(Contestant):
    """A scan of all codes; the setting is how many rows are re-ranked."""

    settings = seam.ladder(10, 1000)

    def build(self, data: SearchData) -> None:
        from turbovec import TurboQuantIndex

        made: Any = TurboQuantIndex(dim=seam.shape_of(data.vectors)[1], bit_width=BITS)
        made.calibrate(seam.sample_of(data.vectors, SAMPLE_ROWS))
        for _, rows in seam.chunks_of(data.vectors):
            made.add(rows)
        made.write(str(data.prepared / INDEX_NAME))

    def open(self, data: SearchData) -> None:
        from turbovec import TurboQuantIndex

        self._index: Any = TurboQuantIndex.load(str(data.prepared / INDEX_NAME))
        self._index.prepare()
        self._rows = MappedRows(data.vectors)

    def search(self, queries: Float32, setting: int) -> Int64:
        _, proposed = self._index.search(queries, setting)
        return self._rows.rank(queries, proposed.astype(np.int64))
