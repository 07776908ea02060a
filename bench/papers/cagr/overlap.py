"""Jaccard indexes and groups of queries, as in CaGR-RAG, and Figure 1. Pure."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from bench.data.oracles import Int32

Float64 = npt.NDArray[np.float64]

BATCH = 100
"""Questions that are compared with each other in Figure 1."""


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """Jaccard indexes of the questions of a dataset, in batches of 100.

    `adjacent`, `any_pair`: means over consecutive questions, and over all pairs of a batch.
    `best`: the mean of each question with the most similar one of its batch; `over_60`: the share
    whose best is over 0.6. `groups`, `distinct`: of a batch, means.
    """

    dataset: str
    questions: int
    adjacent: float
    any_pair: float
    best: float
    over_60: float
    groups: float
    distinct: float


def jaccard(probes: Int32) -> Float64:
    """Returns the Jaccard index (Eq. 2) of each pair of queries: (n, nprobe) int32 -> (n, n)."""
    has = np.zeros((len(probes), int(probes.max()) + 1), np.float32)
    np.put_along_axis(has, probes, 1, axis=1)
    shared = has @ has.T
    return np.asarray(shared / (2 * probes.shape[1] - shared), np.float64)


def greedy_groups(probes: Int32, similarity_min: float | None) -> list[list[int]]:
    """Returns groups in the order of arrival (Algorithm 1, step 1); None: each query alone.

    A query joins the first group with a member that is similar enough.
    """
    if similarity_min is None:
        return [[query] for query in range(len(probes))]
    similar = jaccard(probes) >= similarity_min
    groups: list[list[int]] = []
    for query in range(len(probes)):
        for group in groups:
            if similar[query, group].any():
                group.append(query)
                break
        else:
            groups.append([query])
    return groups


def overlap_of(dataset: str, probes: Int32, similarity_min: float) -> Overlap:
    """Returns the overlaps. `probes`: (questions, nprobe) int32, at least 100 questions."""
    batches = [probes[at : at + BATCH] for at in range(0, len(probes) - BATCH + 1, BATCH)]
    matrices = [jaccard(batch) for batch in batches]
    off = ~np.eye(BATCH, dtype=bool)
    best = np.concatenate([np.where(off, matrix, 0).max(axis=1) for matrix in matrices])
    return Overlap(
        dataset=dataset,
        questions=len(batches) * BATCH,
        adjacent=float(np.mean([np.diagonal(matrix, 1).mean() for matrix in matrices])),
        any_pair=float(np.mean([matrix[off].mean() for matrix in matrices])),
        best=float(best.mean()),
        over_60=float((best > 0.6).mean()),
        groups=float(np.mean([len(greedy_groups(batch, similarity_min)) for batch in batches])),
        distinct=float(np.mean([len(np.unique(batch)) for batch in batches])),
    )
