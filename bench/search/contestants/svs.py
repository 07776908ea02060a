"""SVS: a graph (Vamana) over float16 rows, all in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.search.contestants import contestant as seam
from bench.search.contestants.contestant import Contestant, SearchData
from carpool.arrays import Float32, Int64

FOLDERS = ("config", "graph", "data")
DEGREE, BUILD_WINDOW, ALPHA = 64, 128, 0.95
"""Edges of a row, candidates for them, and the pruning that SVS names for inner products."""


class Svs(Contestant):
    """A walk through the graph for each query; the setting is the search window."""

    settings = seam.ladder(10, 2000)

    def build(self, data: SearchData) -> None:
        import svs

        wishes = svs.VamanaBuildParameters(ALPHA, DEGREE, BUILD_WINDOW)
        rows = np.load(data.vectors, allow_pickle=False).astype(np.float16)
        made: Any = svs.Vamana.build(wishes, rows, svs.DistanceType.MIP, num_threads=seam.THREADS)
        made.save(*(str(data.prepared / name) for name in FOLDERS))

    def open(self, data: SearchData) -> None:
        import svs

        config, graph, stored = (str(data.prepared / name) for name in FOLDERS)
        rows: Any = svs.VectorDataLoader(stored, svs.DataType.float16)
        self._index: Any = svs.Vamana(
            config, svs.GraphLoader(graph), rows, svs.DistanceType.MIP, num_threads=seam.THREADS
        )

    def search(self, queries: Float32, setting: int) -> Int64:
        if self._index.search_window_size != setting:
            self._index.search_window_size = setting
        found: Int64 = self._index.search(queries, seam.TOP_K)[0].astype(np.int64)
        return found
