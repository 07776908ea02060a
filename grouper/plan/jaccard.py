"""Groups of queries that probe the same clusters (CaGR-RAG, Eq. 2 and Algorithm 1, step 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray


def jaccard_matrix(clusters: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Returns J of each pair of queries: (n, n) float64, symmetric, 1 on the diagonal.

    `clusters[i]` is C(q_i): distinct cluster ids in any order, at least one; queries may probe
    different numbers of them. The incidence has at most a column for each probe, so memory is at
    most n x sum |C|, whatever nlist is. Each J is the float64 nearest to its fraction: a
    decimal theta compares exactly.
    """
    if not clusters:
        return np.zeros((0, 0))
    sizes = np.array([len(of_query) for of_query in clusters])
    probed = np.fromiter(chain.from_iterable(clusters), dtype=np.intp, count=int(sizes.sum()))
    width = int(probed.max()) + 1
    if width > len(probed):  # many ids, few of them probed: renumber those
        touched, probed = np.unique(probed, return_inverse=True)
        width = len(touched)
    incidence = np.zeros((len(clusters), width), dtype=np.float32)
    incidence[np.repeat(np.arange(len(clusters)), sizes), probed] = 1.0
    # |A ∩ B|: exact, float32 counts to 2^24.
    shared = (incidence @ incidence.T).astype(np.float64)
    # J(A, B) = |A ∩ B| / |A ∪ B|, with |A ∪ B| = |A| + |B| - |A ∩ B|
    similarity: NDArray[np.float64] = shared / (sizes[:, None] + sizes[None, :] - shared)
    return similarity


def similar_groups(
    clusters: Sequence[Sequence[int]], *, jaccard_similarity_min: float
) -> tuple[tuple[int, ...], ...]:
    """Returns a partition of the positions of `clusters`: groups by first member.

    Each query joins the first group with a member that is similar enough, or starts a group:
    Algorithm 1, lines 6-19, as printed. Eq. 3 of the same paper asks that *all* members are
    similar; here a chain of similar neighbours is enough. Not for windows where such a chain joins
    all queries: the window becomes one group. O(n²) for n queries.
    """
    joins = jaccard_matrix(clusters) >= jaccard_similarity_min
    group_of = np.empty(len(clusters), dtype=np.intp)
    groups: list[list[int]] = []
    for position in range(len(clusters)):
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
