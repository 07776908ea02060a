"""The exact answers that contestants are judged by. Pure, but for reading the vectors."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.search.contestants.contestant import Float32, Int64, chunks_of
from indexer.kmeans import faiss

MARGIN = 10
"""This many more than top_k are found, so that the scores of ties are known."""
TOLERANCE = 1e-5
"""Scores nearer than this are equal: the order of float32 sums changes the last bits."""


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


def exact_answers(vectors: Path, queries: Float32, top_k: int) -> BestRows:
    """Scores every row for every query: (n, dim) float32. Reads `vectors` once, in chunks."""
    count = top_k + MARGIN
    best = faiss.ResultHeap(len(queries), count, keep_max=True)
    for start, chunk in chunks_of(vectors):
        scores, rows = faiss.knn(queries, chunk, count, metric=faiss.METRIC_INNER_PRODUCT)
        best.add_result(scores, np.where(rows < 0, -1, rows + start))
    best.finalize()
    return BestRows(best.I, best.D)
