"""Qdrant Edge: a graph (HNSW) over codes of 4 bits in memory, float16 rows on disk to re-rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.search.contestants import contestant as seam
from bench.search.contestants.contestant import Contestant, SearchData
from carpool.arrays import Float32, Int64

EDGES, BUILD_EF = 16, 100
"""Qdrant's defaults."""
OVERSAMPLING = 2.0
INDEXED_KB = 1
"""A segment that is larger gets a graph."""


class Qdrant(Contestant):
    """A walk through the graph for each query, and re-ranking by Qdrant; the setting is ef."""

    settings = seam.ladder(10, 3000)

    def build(self, data: SearchData) -> None:
        import qdrant_edge as qdrant

        four: Any = qdrant.TurboQuantBitSize.Bits4
        codes = qdrant.TurboQuantQuantizationConfig(bits=four, memory=qdrant.Memory.Pinned)
        config = qdrant.EdgeConfig(
            vectors=qdrant.EdgeVectorParams(
                size=seam.shape_of(data.vectors)[1],
                distance=qdrant.Distance.Dot,
                datatype=qdrant.VectorStorageDatatype.Float16,
                memory=qdrant.Memory.Cold,
            ),
            hnsw_config=qdrant.HnswIndexConfig(EDGES, BUILD_EF, INDEXED_KB),
            quantization_config=codes,
            optimizers=qdrant.EdgeOptimizersConfig(None, None, 1, None, INDEXED_KB),
            wal_enabled=False,
        )
        shard: Any = qdrant.EdgeShard.create(str(data.prepared), config)
        for start, rows in seam.chunks_of(data.vectors):
            points = [qdrant.Point(start + at, row) for at, row in enumerate(rows.tolist())]
            shard.update(qdrant.UpdateOperation.upsert_points(points))
        shard.optimize()
        shard.flush()
        shard.close()

    def open(self, data: SearchData) -> None:
        import qdrant_edge as qdrant

        self._qdrant: Any = qdrant
        self._shard: Any = qdrant.EdgeShard.load(str(data.prepared))

    def search(self, queries: Float32, setting: int) -> Int64:
        codes = self._qdrant.QuantizationSearchParams(rescore=True, oversampling=OVERSAMPLING)
        params = self._qdrant.SearchParams(hnsw_ef=setting, quantization=codes)
        nearest, request = self._qdrant.Query.Nearest, self._qdrant.QueryRequest
        batch = [
            request(limit=seam.TOP_K, query=nearest(query), params=params)
            for query in queries.tolist()
        ]
        found = self._shard.query_batch(self._qdrant.QueryBatchRequest(batch))
        return np.array([[point.id for point in points] for points in found], np.int64)

    def close(self) -> None:
        self._shard.close()
