"""The groups of a window by each reading of CaGR-RAG: Algorithm 1, Eq. 3, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from sklearn.cluster import AgglomerativeClustering

from grouper.plan.jaccard import jaccard_matrix, similar_groups

Grouping = Literal["greedy", "agglomerative", "per_query"]

NEVER_TOGETHER = 2.0
"""A distance that no pair of sets has: Jaccard distances end at 1."""


def groups_of(
    grouping: Grouping, clusters: Sequence[Sequence[int]], similarity_min: float
) -> tuple[tuple[int, ...], ...]:
    """Returns a partition of the positions of `clusters`, by first member.

    `greedy`: similar to one member, as Algorithm 1 prints it. `agglomerative`: similar to all
    members, as Eq. 3 asks (complete linkage, Müllner 2011). `per_query`: each query alone.
    """
    if grouping == "greedy":
        return similar_groups(clusters, jaccard_similarity_min=similarity_min)
    if grouping == "per_query" or len(clusters) < 2:
        return tuple((position,) for position in range(len(clusters)))
    similarity = jaccard_matrix(clusters)
    # Distances only order the merges: comparing 1 - J with 1 - theta would leave J = theta to
    # rounding, so pairs below theta are beyond the threshold.
    labels = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="complete", distance_threshold=1.5
    ).fit_predict(np.where(similarity >= similarity_min, 1.0 - similarity, NEVER_TOGETHER))
    groups: dict[int, list[int]] = {}
    for position, label in enumerate(labels.tolist()):
        groups.setdefault(label, []).append(position)
    return tuple(tuple(members) for members in groups.values())
