"""Makes clusters more even before rows are assigned: large ones are split, small ones dissolved."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import numpy.typing as npt

from indexer.kmeans import kmeans, nearest
from indexer.plan.balance import Balance, plan_balance, unevenness

ROUNDS_MAX = 8
SETTLE_ITERATIONS = 2

Float32 = npt.NDArray[np.float32]


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
