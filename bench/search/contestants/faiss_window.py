"""What contestants share that answer a window by one call of FAISS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.search.contestants.contestant import (
    AskedWindow,
    Float32,
    FoundRows,
    Int64,
    Limits,
    SearchData,
)

INDEX_NAME = "index.faiss"


class FaissWindow:
    """An index of FAISS in a file, loaded by `open`, and a call of it for each window."""

    name: str
    """Of the contestant and its folder."""
    _index: Any = None
    _top_k = 0

    def open(self, data: SearchData, limits: Limits) -> None:
        """Loads the index."""
        import faiss
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        # Threads of BLAS that wait for more work take the cores from those of FAISS.
        threadpool_limits(limits=1, user_api="blas")
        faiss.omp_set_num_threads(limits.threads)
        self._index = faiss.read_index(str(data.prepared_dir / self.name / INDEX_NAME))
        self._top_k = data.top_k

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        """Answers the window by one call of FAISS."""
        vectors = np.ascontiguousarray(window.vectors)
        found = self._find(vectors, window.probes.astype(np.int64))
        for number, rows in enumerate(found, start=window.first):
            yield FoundRows(number, rows[rows >= 0])

    def bytes_read(self) -> None:
        """Returns nothing: the kernel reads for FAISS."""

    def close(self) -> None:
        """Frees the index."""
        self._index = None

    def _find(self, vectors: Float32, probes: Int64) -> Iterator[Int64]:
        """Yields the rows of each query, best first, -1 where there are none.

        `vectors`: (n, dim) float32; `probes`: (n, nprobe) int64.
        """
        raise NotImplementedError


def quantizer_of(centroids: Float32) -> Any:
    """Returns FAISS's index of `centroids`, (nlist, dim) float32, by inner product."""
    import faiss

    quantizer = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(np.ascontiguousarray(centroids))
    return quantizer
