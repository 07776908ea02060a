"""Which nprobe reaches which recall, from where the true results of questions are. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

TARGETS = (0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99)
"""Shares of the true results that rows of the table promise."""


def ceilings(ranks: Int64, nlist: int) -> npt.NDArray[np.float64]:
    """Returns the share of true results in the first nprobe clusters, for each nprobe from 1 on.

    `ranks`: (questions, top_k) int64: at which place of the question's order of clusters, from 0,
    the cluster of each true result is. Returns (nlist,) float64, rising to 1.
    """
    counts = np.bincount(ranks.ravel(), minlength=nlist)
    shares: npt.NDArray[np.float64] = np.cumsum(counts) / ranks.size
    return shares


def nprobes_for(
    targets: Sequence[float], shares: npt.NDArray[np.float64], kept: float
) -> tuple[int, ...]:
    """Returns the least nprobe that reaches each target, or all clusters where none does.

    `shares`: as `ceilings` returns them; `kept`: the share of the results in the probed clusters
    that a search finds.
    """
    return tuple(
        min(len(shares), int(np.searchsorted(shares * kept, target)) + 1) for target in targets
    )
