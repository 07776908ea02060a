"""IVF clustering with FAISS: spherical k-means by inner product, and the cluster of every row."""

from __future__ import annotations

from collections.abc import Callable

import faiss
import numpy as np
import numpy.typing as npt

from carpool.errors import ConfigError
from indexer.plan import ClusteringIdentity
from indexer.vectors import Vectors

ASSIGN_CHUNK_ROWS = 8192


def train_centroids(
    vectors: Vectors, nlist: int, settings: ClusteringIdentity, *, threads: int
) -> npt.NDArray[np.float32]:
    """Returns centroids: (nlist, dim) float32, row-normalised, trained on a seeded sample. Blocks.

    The same vectors, settings and threads give the same bytes. Raises `ConfigError` where there are fewer rows than clusters.
    """
    if nlist > vectors.row_count:
        raise ConfigError(
            f"nlist is {nlist} for {vectors.row_count} passages; give --nlist {vectors.row_count} or less"
        )
    if threads:
        faiss.omp_set_num_threads(threads)
    count = min(vectors.row_count, nlist * settings.train_rows_per_cluster)
    sample = np.random.default_rng(settings.seed).choice(vectors.row_count, size=count, replace=False, shuffle=False)
    kmeans = faiss.Kmeans(
        vectors.dimension,
        nlist,
        niter=settings.train_iterations,
        spherical=True,
        seed=settings.seed,
        min_points_per_centroid=1,  # small corpora are fine: only say nothing on standard error
        max_points_per_centroid=count,
    )
    kmeans.train(vectors.take(np.sort(sample).astype(np.int64)))
    return np.ascontiguousarray(kmeans.centroids, dtype=np.float32)


def assign_rows(
    vectors: Vectors, centroids: npt.NDArray[np.float32], on_rows: Callable[[int], None]
) -> npt.NDArray[np.int64]:
    """Returns (row_count,) int64: the cluster of each row, its nearest centroid by inner product. Calls `on_rows`, blocks."""
    quantizer = faiss.IndexFlatIP(vectors.dimension)
    quantizer.add(centroids)
    clusters = np.empty(vectors.row_count, dtype=np.int64)
    for start in range(0, vectors.row_count, ASSIGN_CHUNK_ROWS):
        chunk = vectors.slice(start, start + ASSIGN_CHUNK_ROWS)
        clusters[start : start + len(chunk)] = quantizer.search(chunk, 1)[1][:, 0]
        on_rows(len(chunk))
    return clusters
