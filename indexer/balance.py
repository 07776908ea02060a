"""Makes clusters more even before rows are assigned: large ones are split, small ones dissolved."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import faiss
import numpy as np
import numpy.typing as npt

from indexer.plan.balance import Balance, plan_balance, unevenness

ROUNDS_MAX = 8
SETTLE_ITERATIONS = 2
NEAREST_CHUNK_ROWS = 8192

Float32 = npt.NDArray[np.float32]


def kmeans(
    rows: Float32, count: int, *, iterations: int, seed: int, start: Float32 | None = None
) -> Float32:
    """Returns (count, dim) float32 centroids of length 1: spherical k-means by inner product."""
    trained = faiss.Kmeans(
        rows.shape[1],
        count,
        niter=iterations,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,  # no warning for small corpora
        max_points_per_centroid=len(rows),
    )
    trained.train(rows, init_centroids=start)
    return np.array(trained.centroids, dtype=np.float32)


def nearest(rows: Float32, centroids: Float32) -> npt.NDArray[np.int32]:
    """Returns (len(rows),) int32: the nearest centroid of each row, by inner product."""
    quantizer = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids)
    clusters = np.empty(len(rows), dtype=np.int32)
    for start in range(0, len(rows), NEAREST_CHUNK_ROWS):
        chunk = rows[start : start + NEAREST_CHUNK_ROWS]
        clusters[start : start + len(chunk)] = quantizer.search(chunk, 1)[1][:, 0]
    return clusters


def balance_centroids(
    sample: Float32, centroids: Float32, seed: int, note: Callable[[str], None]
) -> Float32:
    """Returns as many centroids, whose clusters are within the factors of the plan if possible.

    `sample`: (n, dim) float32, random rows, 256 a cluster give sizes to 6 %. Each round splits by
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
