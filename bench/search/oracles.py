"""Two oracles: the bytes that no cache of their kind can go below. Computed from the probes, nothing is read. Pure functions."""

from __future__ import annotations

import msgspec
import numpy as np

from bench.search.contestant import Int32, Int64


class OracleBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes an oracle reads for a whole run. `kept_bytes`: what it holds all the time, read once within them."""

    bytes_read: int
    kept_bytes: int


def window_counts(probes: Int32, window: int, nlist: int) -> Int64:
    """Returns in how many windows each cluster is wanted: (nlist,) int64. `probes`: (queries, nprobe) int32, as they arrive."""
    counts = np.zeros(nlist, dtype=np.int64)
    for start in range(0, len(probes), window):
        counts[np.unique(probes[start : start + window])] += 1
    return counts


def oracle_window(counts: Int64, cluster_bytes: Int64) -> OracleBytes:
    """Each wanted cluster is read once a window, nothing is kept between windows. Both arrays: (nlist,) int64."""
    return OracleBytes(bytes_read=int(counts @ cluster_bytes), kept_bytes=0)


def oracle_static(counts: Int64, cluster_bytes: Int64, budget_bytes: int) -> OracleBytes:
    """The best fixed set within the budget is read once and kept, the rest once a window. Both arrays: (nlist,) int64.

    Keeping cluster c saves size(c) * (windows that want it - 1), so the best set takes clusters by falling count, and a part
    of the last one that does not fit: the fractional knapsack, which no set of whole clusters can beat.
    """
    order = np.lexsort((np.arange(len(counts)), -counts))
    order = order[counts[order] > 1]
    before = np.concatenate(([0], np.cumsum(cluster_bytes[order])[:-1])) if len(order) else np.empty(0, dtype=np.int64)
    kept = np.clip(budget_bytes - before, 0, cluster_bytes[order])
    saved = int(((counts[order] - 1) * kept).sum())
    return OracleBytes(bytes_read=int(counts @ cluster_bytes) - saved, kept_bytes=int(kept.sum()))
