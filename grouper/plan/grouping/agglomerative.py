"""Agglomerative grouping with a choice of linkage (CaGR-RAG, Eq. 3; Müllner 2011)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import AgglomerativeClustering

Linkage = Literal["complete", "average", "single"]

NEVER_TOGETHER = 2.0
"""A distance that no pair of sets has: Jaccard distances end at 1."""

DISTANCE_THRESHOLD = 1.5
"""Above the distances of pairs that may share a group (at most 1), below `NEVER_TOGETHER`."""

ROUNDING = 1e-9
"""More than a mean of Jaccard distances is off by, and less than two of them that differ lie apart
in a window.
"""


class Agglomerative:
    """Merges the closest groups while their linkage has J >= theta.

    `complete`: their least alike members, which is Eq. 3: J >= theta holds for every pair of a
    group. `average`: the mean over all pairs between them. `single`: their most alike members, so
    that a group is a chain of neighbours: `greedy` without its dependence on the order of arrival.
    Not for bursts of near-duplicates only: `greedy` finds the same groups for less. O(n²) here, and
    about half a millisecond in scikit-learn whatever n is.
    """

    name: Literal["agglomerative"] = "agglomerative"

    def __init__(self, *, jaccard_similarity_min: float, linkage: Linkage = "complete") -> None:
        self._theta = jaccard_similarity_min
        self._linkage = linkage

    def group(self, similarity: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
        """Returns the groups of `similarity`, (n, n) float64, by first member."""
        if len(similarity) < 2:
            return tuple((position,) for position in range(len(similarity)))
        distance, threshold = self._distances(similarity)
        labels = AgglomerativeClustering(
            n_clusters=None,
            metric="precomputed",
            linkage=self._linkage,
            distance_threshold=threshold,
        ).fit_predict(distance)
        groups: dict[int, list[int]] = {}
        for position, label in enumerate(labels.tolist()):
            groups.setdefault(label, []).append(position)
        return tuple(tuple(members) for members in groups.values())

    def _distances(self, similarity: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """The matrix to cluster, and the distance at which merging stops."""
        if self._linkage == "average":
            return 1.0 - similarity, 1.0 - self._theta + ROUNDING
        # One pair decides here, and its J = theta joins exactly. Comparing 1 - J with 1 - theta
        # would leave that to rounding; so distances only order the merges, and pairs below theta
        # are beyond the threshold.
        return np.where(
            similarity >= self._theta, 1.0 - similarity, NEVER_TOGETHER
        ), DISTANCE_THRESHOLD
