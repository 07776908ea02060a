"""Which codes are read, scanned and evicted, where the codes of an index exceed memory. Pure.

The next query is the one whose missing codes have the fewest bytes. Its clusters are read, and each
cluster that is in memory is scanned at once for all queries that wait for it. So queries that join
together read each cluster at most once, nobody waits for a cluster in memory, and any of these can
be evicted: first those that the next windows need last.

The steps are a program: whoever carries them out in order, at any pace, has never more than the
budget in memory. Nothing here depends on how long reads and scans take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.record import ClusterId

OVERTAKEN_MAX = 100
"""Queries that may be chosen before one that came earlier."""
KEPT_AT_A_WINDOW = 0.98
"""Share of the count of a cluster's uses that counts after a window."""
EVICTED_SHARE = 8
"""A full memory frees this part of the budget: a scan of few clusters is one of few queries."""
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
        self._due: dict[int, None] = {}  # queries with clusters to scan, or with none left
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
        self._due[key] = None

    def drop(self, key: int) -> None:
        """Forgets a query."""
        query = self._queries.pop(key, None)
        self._due.pop(key, None)
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
            self._due[key] = None
        self._waiting[cluster] = 0

    def waiters(self, cluster: ClusterId) -> Collection[int]:
        """Returns the queries that no step has scanned over `cluster`."""
        return tuple(self._waiters.get(cluster, ()))

    # ---- what to do

    def plan(self) -> list[Step]:
        """Returns the steps that complete at least one query; none if there is no query."""
        steps: list[Step] = []
        self._scan(steps)
        if self._queries:
            key = self._next_key()
            for cluster in self._missing(key):
                if self._free_bytes < self._size_bytes[cluster]:
                    self._scan(steps)
                    self._evict(self._size_bytes[cluster], steps)
                steps.append(ReadCodes(cluster, key))
                self._arrive(cluster)
            self._scan(steps)
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
        self._is_there[cluster] = True
        self._free_bytes -= self._size_bytes[cluster]
        for key in self._waiters[cluster]:
            self._queries[key].missing_bytes -= self._size_bytes[cluster]
            self._due[key] = None

    def _evict(self, needed_bytes: int, steps: list[Step]) -> None:
        """Evicts what the next windows need last. No query waits for a cluster in memory."""
        wanted_bytes = max(needed_bytes, self._budget_bytes // EVICTED_SHARE)
        there = np.flatnonzero(self._is_there)
        order = np.lexsort((self._uses[there], -self._next_window[there]))
        for cluster in map(ClusterId, there[order].tolist()):
            if self._free_bytes >= wanted_bytes:
                return
            steps.append(EvictCodes(cluster))
            self._is_there[cluster] = False
            self._free_bytes += self._size_bytes[cluster]

    def _scan(self, steps: list[Step]) -> None:
        """Scans all clusters that are there for all who wait for them."""
        for key in self._due:
            query = self._queries[key]
            clusters = tuple(cluster for cluster in query.left if self._is_there[cluster])
            for cluster in clusters:
                del query.left[cluster]
                self._unwait(cluster, key)
            if not query.left:
                del self._queries[key]
            if clusters or not query.left:
                steps.append(ScanCodes(key, clusters, not query.left))
        self._due.clear()

    def _unwait(self, cluster: ClusterId, key: int) -> None:
        waiters = self._waiters[cluster]
        del waiters[key]
        if not waiters:
            del self._waiters[cluster]
        self._waiting[cluster] -= 1
