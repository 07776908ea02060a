"""IVF clustering with FAISS: spherical k-means on a sample, then the cluster of every row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import faiss
import numpy as np
import numpy.typing as npt
import xxhash

from carpool.errors import ConfigError
from indexer.balance import balance_centroids, kmeans
from indexer.plan.passes import sample_rows_max
from indexer.plan.state import ClusteringIdentity
from indexer.progress import ProgressReport
from indexer.vectors import Vectors, bytes_of

ITERATIONS = 20
"""Rounds of k-means: fewer give uneven clusters."""
ROWS_PER_CLUSTER = 256
"""Rows that train a centroid: fewer give poor clusters, more take time and memory."""

Float32 = npt.NDArray[np.float32]


class Assignment(NamedTuple):
    """The cluster of each row, (row_count,) int32, and a digest of the assigned vectors."""

    clusters: npt.NDArray[np.int32]
    vectors_digest: str


def train_centroids(
    vectors: Vectors,
    nlist: int,
    settings: ClusteringIdentity,
    progress: ProgressReport,
    *,
    iterations: int = ITERATIONS,
) -> Float32:
    """Returns centroids: (nlist, dim) float32, row-normalised, trained on a seeded sample. Blocks.

    The same vectors, settings and threads give the same bytes. Raises `ConfigError` where the rows,
    or the rows that fit memory, are fewer than the clusters.
    """
    if nlist > vectors.row_count:
        raise ConfigError(
            f"nlist is {nlist} for {vectors.row_count} passages; give --nlist {vectors.row_count} "
            "or less"
        )
    sample = _sample(vectors, nlist, settings, progress)
    progress.start(f"training {nlist:,} clusters", iterations)
    centroids = None
    for _ in range(iterations):
        # One iteration a call, from the centroids of the call before, to report progress.
        centroids = kmeans(sample, nlist, iterations=1, seed=settings.seed, start=centroids)
        progress.advance(1)
    assert centroids is not None
    return balance_centroids(sample, centroids, settings.seed, progress.note)


def _sample(
    vectors: Vectors,
    nlist: int,
    settings: ClusteringIdentity,
    progress: ProgressReport,
) -> Float32:
    try:
        count = sample_rows_max(
            vectors.row_count,
            nlist,
            dimension=vectors.dimension,
            rows_per_cluster=ROWS_PER_CLUSTER,
            bytes_max=settings.train_bytes_max,
        )
    except ValueError as error:
        raise ConfigError(
            f"indexer.memory_bytes is {settings.train_bytes_max}: {error}; give at least "
            f"{nlist * vectors.dimension * 4}, better 40 times that"
        ) from error
    chosen = np.random.default_rng(settings.seed).choice(
        vectors.row_count, size=count, replace=False, shuffle=False
    )
    sample = np.empty((count, vectors.dimension), dtype=np.float32)
    progress.start("sampling", vectors.row_count)
    vectors.gather(np.sort(chosen).astype(np.int64), sample, progress.advance)
    return sample


def assign_rows(vectors: Vectors, centroids: Float32, on_rows: Callable[[int], None]) -> Assignment:
    """Returns the cluster of each row: the nearest centroid by inner product. One pass; blocks."""
    quantizer = faiss.IndexFlatIP(vectors.dimension)
    quantizer.add(centroids)
    clusters = np.empty(vectors.row_count, dtype=np.int32)
    digest = xxhash.xxh3_128()
    for first, chunk in vectors.chunks():
        clusters[first : first + len(chunk)] = quantizer.search(chunk, 1)[1][:, 0]
        digest.update(bytes_of(chunk))
        on_rows(len(chunk))
    return Assignment(clusters, digest.hexdigest())
