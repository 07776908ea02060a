"""Two oracles of a closed loop: the fewest bytes of a cache of their kind. Pure.

Computed from the probes; nothing is read.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class OracleBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a whole run. `kept_bytes`: kept to the end after they were read once."""

    bytes_read: int
    kept_bytes: int


def window_counts(probes: Int32, window: int, nlist: int) -> Int64:
    """Returns in how many windows each cluster is wanted: (nlist,) int64.

    `probes`: (queries, nprobe) int32, in the order of arrival.
    """
    counts = np.zeros(nlist, dtype=np.int64)
    for start in range(0, len(probes), window):
        counts[np.unique(probes[start : start + window])] += 1
    return counts


def oracle_window(counts: Int64, cluster_bytes: Int64) -> OracleBytes:
    """Reads each wanted cluster once a window and keeps nothing. Both arrays: (nlist,) int64."""
    return OracleBytes(bytes_read=int(counts @ cluster_bytes), kept_bytes=0)


def oracle_static(counts: Int64, cluster_bytes: Int64, budget_bytes: int) -> OracleBytes:
    """Keeps the best fixed set within the budget; reads the rest once a window.

    Both arrays: (nlist,) int64. The set is any parts of clusters, chosen with all questions known;
    the run begins with nothing in memory. Keeping a part of cluster c saves its size times (windows
    that want c - 1), so the best set takes clusters by falling count, and what still fits of the
    next one: the fractional knapsack. No reader that keeps a fixed set of clusters or slices reads
    less. It is no bound for a cache whose set changes, or for windows that overlap.
    """
    order = np.lexsort((np.arange(len(counts)), -counts))
    order = order[counts[order] > 1]
    sizes = cluster_bytes[order]
    kept = np.clip(budget_bytes - (np.cumsum(sizes) - sizes), 0, sizes)
    saved = int(((counts[order] - 1) * kept).sum())
    return OracleBytes(bytes_read=int(counts @ cluster_bytes) - saved, kept_bytes=int(kept.sum()))
