"""Which codes are read, scanned and evicted, where the codes of an index exceed memory. Pure.

A query is scanned when the codes of all its clusters are in memory. The next query is the one whose
missing codes have the fewest bytes. When memory is full, a cluster is evicted that no query in hand
needs. If there is none, the cluster is evicted that the fewest queries wait for. Before that, these
queries are scanned over all of their clusters that are in memory, and need these no more.

So queries that join together read each cluster at most once, and a query is scanned in few parts.
Few parts are better, because the scan of each part begins without a least score.

The steps are a program: whoever carries them out in order, at any pace, has never more than the
budget in memory. Nothing here depends on how long reads and scans take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.record import ClusterId

OVERTAKEN_MAX = 100
"""Queries that may be chosen before one that came earlier."""
KEPT_AT_A_WINDOW = 0.98
"""Share of the count of a cluster's uses that counts after a window."""
FAR = 1 << 20
"""Windows until the next use of a cluster that no known window needs."""


@dataclass(frozen=True, slots=True)
class ReadCodes:
    """The codes of a cluster are read into memory, for the query `key` and maybe others."""

    cluster: ClusterId
    key: int


@dataclass(frozen=True, slots=True)
class EvictCodes:
    """The codes of a cluster leave memory, after all scans of earlier steps."""

    cluster: ClusterId


@dataclass(frozen=True, slots=True)
class ScanCodes:
    """The query `key` is scanned over `clusters`, which are in memory. `is_last`: it is complete.

    `clusters` may be empty in the last step of a query.
    """

    key: int
    clusters: tuple[ClusterId, ...]
    is_last: bool


Step = ReadCodes | EvictCodes | ScanCodes


@dataclass(slots=True)
class _Unscanned:
    """`left`: clusters that no step scans yet, nearest first; `missing_bytes`: of those absent."""

    left: dict[ClusterId, None]
    missing_bytes: int = 0
    overtaken: int = 0


class PagedCodesPlanner:
    """Plans for the queries that joined and are not complete."""

    def __init__(self, size_bytes: Sequence[int], budget_bytes: int) -> None:
        """`size_bytes`: of the codes of each cluster; none may exceed `budget_bytes`."""
        self._size_bytes = size_bytes
        self._free_bytes = budget_bytes
        self._budget_bytes = budget_bytes
        self._is_there = np.zeros(len(size_bytes), bool)
        self._waiters: dict[ClusterId, dict[int, None]] = {}
        self._waiting = np.zeros(len(size_bytes), np.int64)  # the number of waiters
        self._next_window = np.full(len(size_bytes), FAR, np.int64)
        self._uses = np.zeros(len(size_bytes))
        self._queries: dict[int, _Unscanned] = {}
        self._complete: dict[int, None] = {}  # nothing is missing, and no step says so yet
        assert max(size_bytes, default=0) <= budget_bytes, "a cluster exceeds the budget"

    def __len__(self) -> int:
        """The number of queries that are not complete."""
        return len(self._queries)

    def is_in_memory(self, cluster: ClusterId) -> bool:
        """Whether the codes of a cluster are in memory after the steps planned so far."""
        return bool(self._is_there[cluster])

    # ---- what happens

    def join(self, key: int, clusters: Iterable[ClusterId]) -> None:
        """Adds a query. `clusters`: nearest first."""
        has_codes = (cluster for cluster in clusters if self._size_bytes[cluster])
        query = self._queries[key] = _Unscanned(dict.fromkeys(has_codes))
        for cluster in query.left:
            self._waiters.setdefault(cluster, {})[key] = None
            self._waiting[cluster] += 1
            self._uses[cluster] += 1
            if not self._is_there[cluster]:
                query.missing_bytes += self._size_bytes[cluster]
        if not query.missing_bytes:
            self._complete[key] = None

    def drop(self, key: int) -> None:
        """Forgets a query."""
        query = self._queries.pop(key, None)
        self._complete.pop(key, None)
        if query is not None:
            for cluster in query.left:
                self._unwait(cluster, key)

    def expect(self, next_window: Mapping[ClusterId, int]) -> None:
        """A window begins. `next_window`: in how many windows a cluster is needed next.

        It is advice: clusters that the index does not have are ignored.
        """
        self._uses *= KEPT_AT_A_WINDOW
        self._next_window[:] = FAR
        for cluster, windows in next_window.items():
            if 0 <= cluster < len(self._next_window):
                self._next_window[cluster] = windows

    def fail(self, cluster: ClusterId) -> None:
        """The codes of a cluster could not be read: the queries that wait go on without them."""
        if self._is_there[cluster]:
            self._is_there[cluster] = False
            self._free_bytes += self._size_bytes[cluster]
            missing_bytes = 0
        else:
            missing_bytes = self._size_bytes[cluster]
        for key in self._waiters.pop(cluster, {}):
            query = self._queries[key]
            del query.left[cluster]
            query.missing_bytes -= missing_bytes
            if not query.missing_bytes:
                self._complete[key] = None
        self._waiting[cluster] = 0

    def waiters(self, cluster: ClusterId) -> Collection[int]:
        """Returns the queries that no step has scanned over `cluster`."""
        return tuple(self._waiters.get(cluster, ()))

    # ---- what to do

    def plan(self) -> list[Step]:
        """Returns the steps that complete at least one query; none if there is no query."""
        steps: list[Step] = []
        if self._queries and not self._complete:
            key = self._next_key()
            victims: deque[ClusterId] = deque()
            for cluster in self._missing(key):
                self._make_room(self._size_bytes[cluster], victims, steps, key)
                steps.append(ReadCodes(cluster, key))
                self._is_there[cluster] = True
                self._free_bytes -= self._size_bytes[cluster]
                self._arrive(cluster)
        for key in tuple(self._complete):
            self._scan(key, steps)
        return steps

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books disagree."""
        there = np.flatnonzero(self._is_there).tolist()
        used_bytes = sum(self._size_bytes[cluster] for cluster in there)
        assert used_bytes + self._free_bytes == self._budget_bytes and self._free_bytes >= 0
        for key, query in self._queries.items():
            missing = [cluster for cluster in query.left if not self._is_there[cluster]]
            assert query.missing_bytes == sum(self._size_bytes[cluster] for cluster in missing)
            assert all(key in self._waiters[cluster] for cluster in query.left)
        pairs = sum(map(len, self._waiters.values()))
        assert pairs == sum(len(query.left) for query in self._queries.values())
        assert pairs == self._waiting.sum()

    def _next_key(self) -> int:
        oldest = next(iter(self._queries))
        if self._queries[oldest].overtaken >= OVERTAKEN_MAX:
            return oldest
        queries = self._queries
        key = min(queries, key=lambda one: queries[one].missing_bytes)  # the first of equals
        if key != oldest:
            queries[oldest].overtaken += 1
        return key

    def _missing(self, key: int) -> list[ClusterId]:
        """The clusters to read for a query: first those that most queries wait for."""
        missing = [one for one in self._queries[key].left if not self._is_there[one]]
        return sorted(missing, key=lambda cluster: -self._waiting[cluster])

    def _arrive(self, cluster: ClusterId) -> None:
        for key in self._waiters[cluster]:
            query = self._queries[key]
            query.missing_bytes -= self._size_bytes[cluster]
            if not query.missing_bytes:
                self._complete[key] = None

    def _make_room(
        self, needed_bytes: int, victims: deque[ClusterId], steps: list[Step], key: int
    ) -> None:
        """Evicts until `needed_bytes` are free; clusters that the query `key` needs come last.

        `victims`: the clusters in memory, the least needed first; empty where that is not known.
        """
        while self._free_bytes < needed_bytes:
            if not victims:
                victims.extend(self._least_needed(key))
            cluster = victims.popleft()
            if self._waiting[cluster]:
                for waiter in self.waiters(cluster):
                    self._scan(waiter, steps)
                victims.clear()  # other clusters have fewer waiters now
            steps.append(EvictCodes(cluster))
            self._is_there[cluster] = False
            self._free_bytes += self._size_bytes[cluster]

    def _least_needed(self, key: int) -> list[ClusterId]:
        """The clusters in memory, the least needed first."""
        there = np.flatnonzero(self._is_there)
        own = np.fromiter(self._queries[key].left, np.int64, len(self._queries[key].left))
        order = np.lexsort(
            (
                self._uses[there],
                -self._next_window[there],
                self._waiting[there],
                np.isin(there, own),
            )
        )
        return [ClusterId(cluster) for cluster in there[order].tolist()]

    def _scan(self, key: int, steps: list[Step]) -> None:
        """Scans a query over what is there of its clusters."""
        self._complete.pop(key, None)
        query = self._queries[key]
        clusters = tuple(cluster for cluster in query.left if self._is_there[cluster])
        for cluster in clusters:
            del query.left[cluster]
            self._unwait(cluster, key)
        is_last = not query.left
        if is_last:
            del self._queries[key]
        steps.append(ScanCodes(key, clusters, is_last))

    def _unwait(self, cluster: ClusterId, key: int) -> None:
        waiters = self._waiters[cluster]
        del waiters[key]
        if not waiters:
            del self._waiters[cluster]
        self._waiting[cluster] -= 1
