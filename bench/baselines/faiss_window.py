"""What contestants share that answer a window by one call of FAISS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines.contestant import (
    AskedWindow,
    ContestantCounters,
    Float32,
    FoundRows,
    Int64,
    Limits,
    SearchData,
)


class FaissWindow:
    """An index of FAISS in a file, and a call of it for each window."""

    _index: Any = None
    _top_k = 0

    def open(self, data: SearchData, limits: Limits) -> None:
        """Reads the index with its lists, or maps them where they are a file of their own."""
        import faiss
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        # Threads of BLAS that wait for more work take the cores from those of FAISS.
        threadpool_limits(limits=1, user_api="blas")
        faiss.omp_set_num_threads(limits.threads)
        flags = faiss.IO_FLAG_ONDISK_SAME_DIR | faiss.IO_FLAG_READ_ONLY
        self._index = faiss.read_index(str(self._path(data)), flags)
        self._top_k = data.top_k

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Answers the window by one call of FAISS."""
        vectors = np.stack([query.vector for query in window.queries])
        probes = np.stack([query.clusters for query in window.queries]).astype(np.int64)
        for query, rows in zip(window.queries, self._find(vectors, probes), strict=True):
            yield FoundRows(query.number, rows[rows >= 0])

    def counters(self) -> ContestantCounters:
        """Returns nothing: the kernel reads for FAISS."""
        return ContestantCounters()

    def close(self) -> None:
        """Frees the index."""
        self._index = None

    def _path(self, data: SearchData) -> Path:
        """Returns the file of the index."""
        raise NotImplementedError

    def _find(self, vectors: Float32, probes: Int64) -> Iterator[Int64]:
        """Yields the rows of each query, best first, -1 where there are none.

        `vectors`: (n, dim) float32; `probes`: (n, nprobe) int64.
        """
        raise NotImplementedError
