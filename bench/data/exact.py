"""Exact searches by FAISS, and IVF-Flat with the same centroids; comparisons with them.

Equal scores have no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from carpool.arrays import Float32, Int64
from indexer.kmeans import faiss

Verdict = Literal["same", "tied", "different"]

TOLERANCE = 1e-5
"""Scores nearer than this are equal: the order of float32 sums changes the last bits."""
MARGIN = 10
"""This many more than top_k are found, so that the scores of ties are known."""


class BestRows(NamedTuple):
    """The best rows of each query, best first: `rows` (n, count) int64, -1 where there is none, and
    their `scores` (n, count) float32.
    """

    rows: Int64
    scores: Float32

    def recall(self, found: Int64) -> float:
        """Returns the share of these rows that is in `found`, (n, top_k) int64, -1 where none.

        A row whose score ties with the last of the best top_k counts; a row counts once.
        """
        hits, wanted = 0, 0
        for ids, rows, scores in zip(found, self.rows, self.scores, strict=True):
            there = int(np.count_nonzero(rows[: len(ids)] >= 0))
            if not there:
                continue
            good = rows[(rows >= 0) & (scores >= scores[there - 1] - TOLERANCE)]
            hits += min(there, len(np.intersect1d(ids, good)))
            wanted += there
        return hits / max(wanted, 1)


def exact_answers(chunks: Iterable[tuple[int, Float32]], queries: Float32, top_k: int) -> BestRows:
    """Scores all rows for all queries: (n, dim) float32. `chunks`: rows, and their first number."""
    count = top_k + MARGIN
    best = faiss.ResultHeap(len(queries), count, keep_max=True)
    for start, chunk in chunks:
        scores, rows = faiss.knn(queries, chunk, count, metric=faiss.METRIC_INNER_PRODUCT)
        best.add_result(scores, np.where(rows < 0, -1, rows + start))
    best.finalize()
    return BestRows(best.I, best.D)


def ivf_answers(
    vectors: Float32, centroids: Float32, queries: Float32, top_k: int, nprobe: int
) -> BestRows:
    """Returns what FAISS IVF-Flat finds for queries, (n, dim) float32, with these centroids.

    `vectors`: (rows, dim) float32, row-normalised, which FAISS assigns to the centroids itself.
    """
    nlist, dimension = centroids.shape
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(np.ascontiguousarray(centroids))
    ivf = faiss.IndexIVFFlat(quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT)
    ivf.is_trained, ivf.nprobe = True, nprobe
    ivf.add(vectors)
    scores, rows = ivf.search(queries, top_k)
    return BestRows(rows, scores)


def verdict(
    vectors: Float32, query: Float32, found: Sequence[tuple[int, float]], expected: BestRows
) -> Verdict:
    """Returns the verdict on the rows and scores that a search found for a query: (dim,).

    `expected`: of this query alone, -1 where there is none. `same`: equal rows at every rank.
    `tied`: where rows differ, the true score is within `TOLERANCE` of the expected one at that
    rank. Anything else is `different`: fewer or more rows, an unknown one (-1), one twice, a score
    that is wrong by more than `TOLERANCE`.
    """
    rows = [row for row, _ in found]
    there = expected.rows >= 0
    if not len(rows) == len(set(rows) - {-1}) == there.sum():
        return "different"
    scores = vectors[rows].astype(np.float64) @ query.astype(np.float64)
    if not np.allclose([score for _, score in found], scores, rtol=0, atol=TOLERANCE):
        return "different"
    if rows == expected.rows[there].tolist():
        return "same"
    is_tied = np.allclose(expected.scores[there], scores, rtol=0, atol=TOLERANCE)
    return "tied" if is_tied else "different"
