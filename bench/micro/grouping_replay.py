"""The bytes that an order of queries reads: windows replayed against a cache of clusters. Pure.

Two searchers. *By query*: one query after the other, with an LRU cache of clusters (the setting of
CaGR-RAG). *By record*: one record after the other, each cluster of a record read once for all its
queries; resident clusters first, then those of the query that lacks the fewest bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from grouper.plan.grouping import GroupingPolicy, Groups
from grouper.plan.order import GroupOrder
from grouper.plan.plan_groups import BEFORE_QUERIES, plan_groups

QueryClusters = tuple[int, ...]


class ReplayRow(msgspec.Struct, frozen=True, kw_only=True):
    """Means over all queries of all windows, for one way of grouping and ordering.

    `completion_mb`: what a searcher by record reads from the start of the query's window to its
    last cluster.
    """

    policy: str
    order: str
    records_a_window: float
    by_query_mb: float
    by_record_mb: float
    completion_mb: float


class EntryCache:
    """A cache of at most `capacity` clusters; the least recently used goes first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._resident: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, cluster: int) -> bool:
        return cluster in self._resident

    def touch(self, cluster: int) -> bool:
        """Uses a cluster; returns whether it had to be read."""
        was_resident = cluster in self._resident
        self._resident[cluster] = None
        self._resident.move_to_end(cluster)
        if len(self._resident) > self._capacity:
            self._resident.popitem(last=False)
        return not was_resident


def ordered_windows(
    windows: Sequence[Sequence[QueryClusters]], policy: GroupingPolicy, order: GroupOrder
) -> list[list[list[QueryClusters]]]:
    """Returns the records of each window, each as C(q) of its queries."""
    before: deque[QueryClusters] = deque(maxlen=BEFORE_QUERIES)
    result = []
    for window in windows:
        groups: Groups = plan_groups(
            window, before=tuple(before), deadlines=(), policy=policy, order=order
        )
        records = [[window[member] for member in members] for members in groups]
        before.extend(query for record in records for query in record)
        result.append(records)
    return result


def replay(
    windows: Sequence[Sequence[QueryClusters]],
    policy: GroupingPolicy,
    order: GroupOrder,
    *,
    name: str,
    sizes_bytes: npt.NDArray[np.int64],
    cache_clusters: int,
) -> ReplayRow:
    """Returns the figures of `policy` (named `name`) and `order`. `sizes_bytes`: (nlist,) int64."""
    planned = ordered_windows(windows, policy, order)
    queries = sum(len(window) for window in windows)
    by_record, completion = _by_record(planned, sizes_bytes, cache_clusters)
    return ReplayRow(
        policy=name,
        order=order.name,
        records_a_window=sum(map(len, planned)) / len(planned),
        by_query_mb=_by_query(planned, sizes_bytes, cache_clusters) / queries / 1e6,
        by_record_mb=by_record / queries / 1e6,
        completion_mb=completion / queries / 1e6,
    )


def _by_query(
    planned: list[list[list[QueryClusters]]], sizes_bytes: npt.NDArray[np.int64], capacity: int
) -> int:
    cache = EntryCache(capacity)
    queries = (query for records in planned for record in records for query in record)
    return sum(
        int(sizes_bytes[cluster]) for query in queries for cluster in query if cache.touch(cluster)
    )


def _by_record(
    planned: list[list[list[QueryClusters]]], sizes_bytes: npt.NDArray[np.int64], capacity: int
) -> tuple[int, int]:
    """Bytes read, and for each query what its window had read when it was done, summed."""
    cache = EntryCache(capacity)
    read_bytes = completion_bytes = 0
    for records in planned:
        window_bytes = 0
        for record in records:
            left = [set(query) for query in record]
            for cluster in sorted(
                {cluster for query in record for cluster in query if cluster in cache}
            ):
                cache.touch(cluster)
                for lacking in left:
                    lacking.discard(cluster)
            waiting = set(range(len(record)))
            while waiting:
                lacks = {
                    query: sum(int(sizes_bytes[cluster]) for cluster in left[query])
                    for query in waiting
                }
                chosen = min(waiting, key=lambda query: (lacks[query], query))
                for cluster in sorted(left[chosen]):
                    cache.touch(cluster)
                    window_bytes += int(sizes_bytes[cluster])
                    for query in waiting:
                        left[query].discard(cluster)
                done = [query for query in waiting if not left[query]]
                completion_bytes += window_bytes * len(done)
                waiting.difference_update(done)
        read_bytes += window_bytes
    return read_bytes, completion_bytes
