"""SVS: a graph (Vamana) over float16 rows, all in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench.search.contestants.contestant import (
    THREADS,
    Contestant,
    Float32,
    Int64,
    SearchData,
    ladder,
)

DEGREE, BUILD_WINDOW, ALPHA = 64, 128, 0.95
"""Edges of a row, candidates for them, and the pruning that SVS names for inner products."""


def _folders(prepared: Path) -> tuple[str, str, str]:
    return str(prepared / "config"), str(prepared / "graph"), str(prepared / "data")


class Svs(Contestant):
    """A walk through the graph for each query; the setting is the search window."""

    settings = ladder(10, 2000)

    def build(self, data: SearchData) -> None:
        """Builds the graph."""
        import svs

        parameters = svs.VamanaBuildParameters(
            alpha=ALPHA, graph_max_degree=DEGREE, window_size=BUILD_WINDOW
        )
        rows = np.load(data.vectors, allow_pickle=False).astype(np.float16)
        made: Any = svs.Vamana.build(parameters, rows, svs.DistanceType.MIP, num_threads=THREADS)
        made.save(*_folders(data.prepared))

    def open(self, data: SearchData) -> None:
        """Loads graph and rows."""
        import svs

        config, graph, rows = _folders(data.prepared)
        self._index: Any = svs.Vamana(
            config,
            svs.GraphLoader(graph),
            svs.VectorDataLoader(rows, svs.DataType.float16),
            svs.DistanceType.MIP,
            num_threads=THREADS,
        )
        self._top_k = data.top_k

    def search(self, queries: Float32, setting: int) -> Int64:
        """Answers the window in one call."""
        if self._index.search_window_size != setting:
            self._index.search_window_size = setting
        rows, _ = self._index.search(queries, self._top_k)
        found: Int64 = rows.astype(np.int64)
        return found
