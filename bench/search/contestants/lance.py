"""LanceDB: clusters of RaBitQ codes of 1 bit (`IVF_RQ`), and rows that it re-ranks from disk."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.search.contestants import contestant as seam
from bench.search.contestants.contestant import Contestant, SearchData
from carpool.arrays import Float32, Int64

TABLE, ROW, VECTOR = "rows", "row", "vector"
REFINE = 20
"""Rows that are re-ranked, as a multiple of those that are asked for."""


class Lance(Contestant):
    """A search of LanceDB for each window; the setting is `nprobes`."""

    def build(self, data: SearchData) -> None:
        """Writes a table, and clusters it, the square root of its rows."""
        import lancedb
        import pyarrow
        from lancedb.index import IvfRq

        count, dimension = seam.shape_of(data.vectors)
        vector = pyarrow.list_(pyarrow.float32(), dimension)
        schema = pyarrow.schema([(ROW, pyarrow.int64()), (VECTOR, vector)])

        def batches() -> Iterator[Any]:
            for start, rows in seam.chunks_of(data.vectors):
                numbers = pyarrow.array(np.arange(start, start + len(rows)))
                numbered = pyarrow.FixedSizeListArray.from_arrays(rows.ravel(), type=vector)
                yield pyarrow.RecordBatch.from_arrays([numbers, numbered], schema=schema)

        reader = pyarrow.RecordBatchReader.from_batches(schema, batches())
        table: Any = lancedb.connect(str(data.prepared)).create_table(TABLE, reader)
        clusters = IvfRq(distance_type="dot", num_partitions=math.isqrt(count), num_bits=1)
        table.create_index(VECTOR, config=clusters)

    def open(self, data: SearchData) -> None:
        import lancedb

        os.environ.setdefault("LANCE_LOG", "error")  # it warns of each search
        self._table: Any = lancedb.connect(str(data.prepared)).open_table(TABLE)
        self.settings = seam.ladder(1, math.isqrt(self._table.count_rows()))

    def search(self, queries: Float32, setting: int) -> Int64:
        asked = queries if len(queries) > 1 else queries[0]
        query = self._table.search(asked, vector_column_name=VECTOR).distance_type("dot")
        query = query.nprobes(setting).refine_factor(REFINE).limit(seam.TOP_K)
        answer = query.select([ROW, "_distance"]).to_arrow()
        rows, found = answer[ROW].to_numpy(), np.full((len(queries), seam.TOP_K), -1, np.int64)
        owners = answer["query_index"].to_numpy() if len(queries) > 1 else np.zeros(len(rows))
        for at, best in enumerate(found):
            some = rows[owners == at]
            best[: len(some)] = some
        return found
