"""Clusters of vectors, made as `carpool index build` does, in fewer rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.data.evaluation import Float32
from indexer.clustering import assign_rows, train_centroids
from indexer.plan.state import ClusteringIdentity
from indexer.progress import SilentProgress
from indexer.vectors import CHUNK_ROWS, Vectors

ITERATIONS = 10


class MemoryVectors(Vectors):
    """Rows in memory, which are clustered as a build does."""

    def __init__(self, rows: Float32) -> None:
        """`rows`: (row_count, dimension) float32, row-normalised; not copied."""
        super().__init__([], dimension=rows.shape[1])
        self._rows = rows
        self.row_count = len(rows)

    def chunks(self, *, are_as_stored: bool = False) -> Iterator[tuple[int, Float32]]:
        """Yields (first row, a view of the rows) in order."""
        for first in range(0, self.row_count, CHUNK_ROWS):
            yield first, self._rows[first : first + CHUNK_ROWS]


class Clustered(NamedTuple):
    """Clusters of some vectors: `centroids` (nlist, dim) float32, `clusters` (rows,) int64."""

    centroids: Float32
    clusters: npt.NDArray[np.int64]


def cluster(vectors: Vectors, *, nlist: int, seed: int) -> Clustered:
    """Returns clusters of row-normalised vectors. Blocks."""
    identity = ClusteringIdentity(nlist=nlist, seed=seed, train_bytes_max=1 << 30)
    centroids = train_centroids(vectors, nlist, identity, SilentProgress(), iterations=ITERATIONS)
    clusters = assign_rows(vectors, centroids, lambda _: None).clusters
    return Clustered(centroids, clusters.astype(np.int64))
