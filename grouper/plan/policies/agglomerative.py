"""Agglomerative grouping in which all members are similar: complete linkage (CaGR-RAG, Eq. 3; Müllner 2011)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import AgglomerativeClustering

NEVER_TOGETHER = 2.0
"""A distance that no pair of sets has: Jaccard distances end at 1."""

DISTANCE_THRESHOLD = 1.5
"""Between the distances of pairs that may share a group (at most 1) and `NEVER_TOGETHER`."""


class Agglomerative:
    """Groups in which J >= theta holds for every pair (Eq. 3), merged closest first.

    Not for bursts of near-duplicates only: `greedy` finds the same groups for less. O(n²) here, and about half a millisecond
    in scikit-learn whatever n is.
    """

    name: Literal["agglomerative"] = "agglomerative"

    def __init__(self, *, jaccard_similarity_min: float) -> None:
        self._theta = jaccard_similarity_min

    def group(self, similarity: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
        """Returns the groups of (n, n) float64 `similarity`, by first member, members in arrival order."""
        if len(similarity) < 2:
            return tuple((position,) for position in range(len(similarity)))
        # Eq. 3 is decided on similarities, where J = theta joins exactly. Comparing 1 - J with 1 - theta would leave it to
        # rounding; so distances only order the merges, and pairs below theta lie beyond the threshold.
        distance = np.where(similarity >= self._theta, 1.0 - similarity, NEVER_TOGETHER)
        labels = AgglomerativeClustering(
            n_clusters=None, metric="precomputed", linkage="complete", distance_threshold=DISTANCE_THRESHOLD
        ).fit_predict(distance)
        groups: dict[int, list[int]] = {}
        for position, label in enumerate(labels.tolist()):
            groups.setdefault(label, []).append(position)
        return tuple(tuple(members) for members in groups.values())
