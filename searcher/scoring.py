"""Exact top-k by inner product: one cluster against one query, and the merge of clusters' results.

Equal to FAISS IVF-Flat over the same centroids and probes, but for the order of scores that differ in the last bits.
NumPy's matrix product releases the GIL, so reads go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from carpool.disk.segment import ClusterRows
from searcher.top_k import TopK

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


class Scorer(Protocol):
    """Scores one cluster for one query; what it returns holds no view of the cluster."""

    def __call__(self, cluster: ClusterRows, query: Float32, top_k: int) -> TopK:
        """Returns the best `top_k` rows of `cluster` for `query`: (dim,) float32."""
        ...


def score_cluster(cluster: ClusterRows, query: Float32, top_k: int) -> TopK:
    """Returns the best `top_k` rows of `cluster`. Costs one matrix-vector product and a partition; needs 4 bytes a row."""
    scores = cluster.vectors @ query
    best = _best(scores, cluster.rows, top_k)
    return TopK(scores[best], cluster.rows[best], np.full(len(best), cluster.cluster, dtype=np.int64))


def merge(parts: Sequence[TopK], top_k: int) -> TopK:
    """Returns the best `top_k` of several results; a row is in one cluster only, so there are no duplicates to drop."""
    if not parts:
        return TopK(np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int64))
    scores, rows, clusters = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    best = _best(scores, rows, top_k)
    return TopK(scores[best], rows[best], clusters[best])


def _best(scores: Float32, rows: Int64, top_k: int) -> npt.NDArray[np.intp]:
    """Positions of the best `top_k`, best first, ties by row number."""
    if len(scores) > top_k:
        # Everything that ties with the k-th is a candidate: a partition alone would pick among equals as it likes.
        threshold = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        candidates = np.flatnonzero(scores >= threshold)
    else:
        candidates = np.arange(len(scores))
    order = np.lexsort((rows[candidates], -scores[candidates]))[:top_k]
    best: npt.NDArray[np.intp] = candidates[order]
    return best
