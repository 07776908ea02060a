"""Two oracles: the bytes that no cache of their kind can go below. Computed from the probes,
nothing is read. Pure functions.

Both are of the closed loop: a window is over before the next begins.
"""

from __future__ import annotations

import msgspec
import numpy as np

from bench.retrieval.contestant import Int32, Int64


class OracleBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes an oracle reads for a whole run. `kept_bytes`: what it holds all the time, read once
    within them.
    """

    bytes_read: int
    kept_bytes: int


def window_counts(probes: Int32, window: int, nlist: int) -> Int64:
    """Returns in how many windows each cluster is wanted: (nlist,) int64. `probes`: (queries,
    nprobe) int32, as they arrive.
    """
    counts = np.zeros(nlist, dtype=np.int64)
    for start in range(0, len(probes), window):
        counts[np.unique(probes[start : start + window])] += 1
    return counts


def oracle_window(counts: Int64, cluster_bytes: Int64) -> OracleBytes:
    """Each wanted cluster is read once a window, nothing is kept between windows. Both arrays:
    (nlist,) int64.
    """
    return OracleBytes(bytes_read=int(counts @ cluster_bytes), kept_bytes=0)


def oracle_static(counts: Int64, cluster_bytes: Int64, budget_bytes: int) -> OracleBytes:
    """The best fixed set within the budget is read once and kept, the rest once a window. Both
    arrays: (nlist,) int64.

    *Fixed set*: any parts of clusters, up to `budget_bytes` together, chosen once with all
    questions known. The run begins with nothing in memory. A part in the set is read in the first
    window that wants it and kept to the end; any other part is read in each window that wants it,
    once for all queries of the window. No reader that keeps a fixed set, of clusters or of slices,
    reads less: within a window it may share every read, and between windows it has nothing but the
    set. It needs memory for what it is reading, too, and the oracle needs none: its budget is all
    kept.

    Keeping a part p of cluster c saves size(p) * (windows that want c - 1), since all parts of a
    cluster are wanted together. So the best set takes clusters by falling count, and what still
    fits of the next: the fractional knapsack, which no set of whole clusters or slices can beat,
    wherever clusters are cut.

    It is no bound for a cache whose set changes: that may keep what only the next windows want. Nor
    where windows overlap: an open loop shares reads between them.
    """
    order = np.lexsort((np.arange(len(counts)), -counts))
    order = order[counts[order] > 1]
    before = (
        np.concatenate(([0], np.cumsum(cluster_bytes[order])[:-1]))
        if len(order)
        else np.empty(0, dtype=np.int64)
    )
    kept = np.clip(budget_bytes - before, 0, cluster_bytes[order])
    saved = int(((counts[order] - 1) * kept).sum())
    return OracleBytes(bytes_read=int(counts @ cluster_bytes) - saved, kept_bytes=int(kept.sum()))
