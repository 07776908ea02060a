"""FAISS over the same vectors in memory: flat (exact), or IVF-Flat with the same centroids.

And the comparison of a search with it. Equal scores have no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from indexer.kmeans import faiss

Float32 = npt.NDArray[np.float32]
Verdict = Literal["same", "tied", "different"]

TOLERANCE = 1e-5
"""Scores nearer than this are equal: the order of float32 sums changes the last bits."""


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
