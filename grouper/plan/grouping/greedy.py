"""Greedy grouping: single linkage, first fit (CaGR-RAG, Algorithm 1, step 1, as printed)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray


class Greedy:
    """Each query joins the first group with a member that is similar enough, or starts a group.

    Algorithm 1, lines 6-19. It differs from Eq. 3 of the same paper, where *all* members are
    similar (`agglomerative`): here a chain of similar neighbours is enough. Not for windows where
    such a chain joins all queries: the window becomes one group. O(n²) for n queries.
    """

    name: Literal["greedy"] = "greedy"

    def __init__(self, *, jaccard_similarity_min: float) -> None:
        self._theta = jaccard_similarity_min

    def group(self, similarity: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
        """Returns the groups of `similarity`, (n, n) float64, by their first queries."""
        joins = similarity >= self._theta
        group_of = np.empty(len(similarity), dtype=np.intp)
        groups: list[list[int]] = []
        for position in range(len(similarity)):
            # max over q in G of J(position, q) >= theta holds for the groups of these earlier
            # queries, and for no other; groups are numbered as they are opened, so the least number
            # is the first fit.
            candidates = group_of[:position][joins[position, :position]]
            if candidates.size:
                number = int(candidates.min())
                groups[number].append(position)
            else:
                number = len(groups)
                groups.append([position])
            group_of[position] = number
        return tuple(tuple(members) for members in groups)
