"""IVF clustering: spherical k-means on a sample, made more even, then the cluster of each row."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from carpool.arrays import Float32
from carpool.errors import ConfigError
from indexer.kmeans import kmeans, nearest
from indexer.plan.balance import Balance, plan_balance, unevenness
from indexer.plan.passes import sample_rows_max
from indexer.plan.state import ClusteringIdentity
from indexer.progress import ProgressReport
from indexer.vectors import Vectors, bytes_of

FIRST_ROWS_PER_CLUSTER, FIRST_ROUNDS = 64, 8
"""Few rows find the places of the centroids, and the sizes of clusters to 12 %."""
ROWS_PER_CLUSTER, LAST_ROUNDS = 256, 3
"""More rows then make the centroids exact: as good as 20 rounds with all of them."""


class Assignment(NamedTuple):
    """The cluster of each row, (row_count,) int32, and a digest of the assigned vectors."""

    clusters: npt.NDArray[np.int32]
    vectors_digest: str


def train_centroids(
    vectors: Vectors, nlist: int, settings: ClusteringIdentity, progress: ProgressReport
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
    progress.start(f"training {nlist:,} clusters", FIRST_ROUNDS + LAST_ROUNDS)

    def train(rows: Float32, rounds: int, start: Float32 | None) -> Float32:
        for _ in range(rounds):
            # One round a call, from the centroids of the call before, to report progress.
            start = kmeans(rows, nlist, iterations=1, seed=settings.seed, start=start)
            progress.advance(1)
        assert start is not None
        return start

    first = sample[: nlist * FIRST_ROWS_PER_CLUSTER]
    centroids = train(first, FIRST_ROUNDS, None)
    centroids = balance_centroids(first, centroids, settings.seed, progress.note)
    return train(sample, LAST_ROUNDS, centroids)


def _sample(
    vectors: Vectors, nlist: int, settings: ClusteringIdentity, progress: ProgressReport
) -> Float32:
    """Returns rows in random order, so that the first ones are a sample too."""
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
        vectors.row_count, size=count, replace=False
    )
    sample = np.empty((count, vectors.dimension), dtype=np.float32)
    progress.start("sampling", vectors.row_count)
    vectors.gather(chosen.astype(np.int64), sample, progress.advance)
    return sample


def assign_rows(vectors: Vectors, centroids: Float32, on_rows: Callable[[int], None]) -> Assignment:
    """Returns the cluster of each row: the nearest centroid by inner product. One pass; blocks."""
    clusters = np.empty(vectors.row_count, dtype=np.int32)
    digest = xxhash.xxh3_128()
    for first, chunk in vectors.chunks():
        clusters[first : first + len(chunk)] = nearest(chunk, centroids)
        digest.update(bytes_of(chunk))
        on_rows(len(chunk))
    return Assignment(clusters, digest.hexdigest())


ROUNDS_MAX = 8
SETTLE_ITERATIONS = 2


def balance_centroids(
    sample: Float32, centroids: Float32, seed: int, note: Callable[[str], None]
) -> Float32:
    """Returns as many centroids, whose clusters are within the factors of the plan if possible.

    `sample`: (n, dim) float32, random rows, 64 a cluster give sizes to 12 %. Each round splits by
    seeded k-means, then trains all centroids a little, and is kept only if clusters became more
    even: equal rows cannot be split. Deterministic. Memory: a second set of centroids and the
    largest cluster of the sample. Blocks.
    """
    clusters, counts, left = _judge(sample, centroids)
    for _ in range(ROUNDS_MAX):
        balance = plan_balance(counts)
        if not balance.splits:
            break
        candidate = _apply(sample, clusters, centroids, balance, seed)
        clusters, counts, left_then = _judge(sample, candidate)
        if left_then >= left:
            break
        note(
            f"clusters made more even: {len(balance.splits)} split, {len(balance.dissolved)} of "
            "the smallest dissolved"
        )
        centroids, left = candidate, left_then
    return centroids


def _judge(sample: Float32, centroids: Float32) -> tuple[npt.NDArray[np.int32], list[int], float]:
    clusters = nearest(sample, centroids)
    counts = np.bincount(clusters, minlength=len(centroids)).tolist()
    return clusters, counts, unevenness(counts)


def _apply(
    sample: Float32,
    clusters: npt.NDArray[np.int32],
    centroids: Float32,
    balance: Balance,
    seed: int,
) -> Float32:
    mended = centroids.copy()
    free = iter(balance.dissolved)
    for cluster, pieces in balance.splits:
        parts = kmeans(sample[clusters == cluster], pieces, iterations=20, seed=seed)
        mended[[cluster, *islice(free, pieces - 1)]] = parts
    return kmeans(sample, len(mended), iterations=SETTLE_ITERATIONS, seed=seed, start=mended)
