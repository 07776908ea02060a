"""Jaccard similarity of the cluster sets of a window, as one matrix product (CaGR-RAG, Eq. 2)."""

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
