"""The oracle of a closed loop: the fewest bytes of a cache that keeps a fixed set. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def static_oracle_bytes(windows: Iterable[Int32], cluster_bytes: Int64, budget_bytes: int) -> int:
    """Returns the bytes of reading what each window wants, but for the best set within the budget.

    `windows`: the probes of each, of any shape, in the order of arrival; `cluster_bytes`: (nlist,).
    The set is any parts of clusters, chosen with all questions known; the run begins with nothing
    in memory. Keeping a part of cluster c saves its size times (windows that want c - 1), so the
    best set takes clusters by falling count, and what still fits of the next one: the fractional
    knapsack. No reader that keeps a fixed set of clusters or slices reads less. It is no bound for
    a cache whose set changes, or for windows that overlap.
    """
    counts = np.zeros(len(cluster_bytes), np.int64)
    for probes in windows:
        counts[np.unique(probes)] += 1
    order = np.lexsort((np.arange(len(counts)), -counts))
    order = order[counts[order] > 1]
    sizes = cluster_bytes[order]
    kept = np.clip(budget_bytes - (np.cumsum(sizes) - sizes), 0, sizes)
    saved_bytes = int(((counts[order] - 1) * kept).sum())
    return int(counts @ cluster_bytes) - saved_bytes
