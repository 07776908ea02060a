"""Exact searches by FAISS, and IVF-Flat with the same centroids; comparisons with them.

Equal scores have no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from indexer.kmeans import faiss

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Verdict = Literal["same", "tied", "different"]

TOLERANCE = 1e-5
"""Scores nearer than this are equal: the order of float32 sums changes the last bits."""
MARGIN = 10
"""This many more than top_k are found, so that the scores of ties are known."""


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found for one query, best first: ids and their scores."""

    ids: tuple[str, ...]
    scores: tuple[float, ...]


class MemorySearch:
    """FAISS indexes of a corpus, for comparison. Their memory is three times the vectors'."""

    def __init__(self, ids: Sequence[str], vectors: Float32, centroids: Float32) -> None:
        """`vectors`: (rows, dim) float32, row-normalised, row i being passage `ids[i]`;
        `centroids`: (nlist, dim) float32.

        FAISS assigns the rows to the centroids itself.
        """
        self._ids = tuple(ids)
        self._row_of = {passage_id: row for row, passage_id in enumerate(self._ids)}
        self._vectors = vectors
        nlist, dimension = centroids.shape
        self._flat = faiss.IndexFlatIP(dimension)
        self._flat.add(vectors)
        self._quantizer = faiss.IndexFlatIP(dimension)  # kept: the IVF index does not own it
        self._quantizer.add(np.ascontiguousarray(centroids))
        self._ivf = faiss.IndexIVFFlat(
            self._quantizer, dimension, nlist, faiss.METRIC_INNER_PRODUCT
        )
        self._ivf.is_trained = True
        self._ivf.add(vectors)

    def flat(self, queries: Float32, top_k: int) -> list[Ranking]:
        """Returns the best `top_k` of all rows for each query: (n, dim) float32."""
        return self._rankings(*self._flat.search(queries, top_k))

    def ivf(self, queries: Float32, top_k: int, nprobe: int) -> list[Ranking]:
        """Returns the best `top_k` rows of the `nprobe` nearest clusters: queries (n, dim)."""
        self._ivf.nprobe = nprobe
        return self._rankings(*self._ivf.search(queries, top_k))

    def verdict(self, query: Float32, found: Ranking, expected: Ranking) -> Verdict:
        """Returns the verdict on what a search found for a query: (dim,).

        `same`: equal ids at every rank. `tied`: where ids differ, the true score is within
        `TOLERANCE` of the expected one at that rank. Anything else is `different`: fewer or more
        hits, an unknown id, an id twice, a score that is wrong by more than `TOLERANCE`.
        """
        rows = [self._row_of[each] for each in found.ids if each in self._row_of]
        if not len(found.ids) == len(rows) == len(set(rows)) == len(expected.ids):
            return "different"
        scores = self._vectors[rows].astype(np.float64) @ query.astype(np.float64)
        if not np.allclose(found.scores, scores, rtol=0, atol=TOLERANCE):
            return "different"
        if found.ids == expected.ids:
            return "same"
        is_tied = np.allclose(expected.scores, scores, rtol=0, atol=TOLERANCE)
        return "tied" if is_tied else "different"

    def _rankings(self, scores: Float32, rows: npt.NDArray[np.int64]) -> list[Ranking]:
        # FAISS pads with -1 where the clusters hold fewer.
        return [
            Ranking(
                ids=tuple(self._ids[row] for row in at[at >= 0]),
                scores=tuple(of_query[at >= 0].tolist()),
            )
            for of_query, at in zip(scores, rows, strict=True)
        ]


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
