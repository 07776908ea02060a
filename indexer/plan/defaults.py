"""Decides nlist and nprobe of an index: by default, and by measured recall. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from carpool.arrays import Int64

WHOLE_ROWS_MAX = 50_000
"""Up to so many rows, all are in one cluster."""
FLAT_ROWS_MAX = 500_000
"""Up to so many rows, all codes are scanned: that is fast, and there is no nprobe to choose."""
FLAT_CLUSTER_ROWS = 4096
"""Rows of a cluster where all codes are scanned: clusters are then units of memory and reads."""
NLIST_FACTOR = 4
NPROBE_FACTOR = 4.75


def default_nlist(row_count: int) -> int:
    """Returns 1 up to `WHOLE_ROWS_MAX` rows, then one for each 4,096 rows up to `FLAT_ROWS_MAX`.

    Above: 4 times the square root of the rows, to one digit; 4,000 for a million. With more
    clusters the scan of a query costs less, and finding its clusters costs more. With one digit,
    nlist stays the same while a corpus grows a little.
    """
    if row_count <= WHOLE_ROWS_MAX:
        return 1
    if row_count <= FLAT_ROWS_MAX:
        return -(-row_count // FLAT_CLUSTER_ROWS)
    wanted = NLIST_FACTOR * math.isqrt(row_count)
    digit = int(10 ** (len(str(wanted)) - 1))
    return (wanted + digit // 2) // digit * digit


def default_nprobe(row_count: int, nlist: int) -> int:
    """Returns nlist up to `FLAT_ROWS_MAX` rows, unless nlist is larger than the default.

    Otherwise 4.75 times the square root of nlist, at most nlist: 300 of 4,000 clusters. Half of it
    is enough for questions that are near passages, but not for real ones: those of NQ need 3.8 to
    4.2 times the root for 95 of 100 of the ten nearest rows (nlist 64 to 400).
    """
    if row_count <= FLAT_ROWS_MAX and nlist <= default_nlist(row_count):
        return nlist
    return max(1, min(nlist, round(NPROBE_FACTOR * math.sqrt(nlist))))


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
