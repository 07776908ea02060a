"""Which codes are read, scanned and evicted, where the codes of an index exceed memory. Pure.

The next query is the one whose missing codes have the fewest bytes. Its clusters are read, and each
cluster that is in memory is scanned at once for all queries that wait for it. So queries that join
together read each cluster at most once, nobody waits for a cluster in memory, and any of these can
be evicted: first those that the next windows need last.

The steps are a program: whoever carries them out in order, at any pace, has never more than the
budget in memory. Nothing here depends on how long reads and scans take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """The codes of a cluster are read into memory, and scanned for the queries `keys`."""

    cluster: ClusterId
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScanCodes:
    """The codes of a cluster, which are in memory, are scanned for the queries `keys`."""

    cluster: ClusterId
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EvictCodes:
    """The codes of a cluster leave memory, after all scans of earlier steps."""

    cluster: ClusterId


Step = ReadCodes | ScanCodes | EvictCodes


@dataclass(slots=True)
class _Unscanned:
    """`left`: clusters that no step scans yet, nearest first, and the bytes of their codes."""

    left: dict[ClusterId, None]
    left_bytes: int
    overtaken: int = 0


class PagedCodesPlanner:
    """Plans for the queries that joined and are not complete."""

    def __init__(self, size_bytes: Sequence[int], budget_bytes: int) -> None:
        """`size_bytes`: of the codes of each cluster; none may exceed `budget_bytes`.

        Codes of no bytes are in memory.
        """
        self._size_bytes = size_bytes
        self._free_bytes = budget_bytes
        self._budget_bytes = budget_bytes
        self._sizes = np.array(size_bytes, np.int64)
        self._is_there = self._sizes == 0
        self._waiters: dict[ClusterId, dict[int, None]] = {}
        self._next_window = np.full(len(size_bytes), FAR, np.int64)
        self._uses = np.zeros(len(size_bytes))
        self._queries: dict[int, _Unscanned] = {}
        self._due: dict[ClusterId, None] = {}  # in memory, and queries that joined wait for them
        assert max(size_bytes, default=0) <= budget_bytes, "a cluster exceeds the budget"

    def __len__(self) -> int:
        """The number of queries that are not complete."""
        return len(self._queries)

    def not_in_memory(self, clusters: Sequence[ClusterId]) -> list[ClusterId]:
        """Returns those of `clusters` that are not in memory after the steps planned so far."""
        chosen = np.array(clusters, np.int64)
        return list(map(ClusterId, chosen[~self._is_there[chosen]].tolist()))

    # ---- what happens

    def join(self, key: int, clusters: Sequence[ClusterId]) -> None:
        """Adds a query. `clusters`: at least one, nearest first."""
        chosen = np.array(clusters, np.int64)
        left_bytes = int(self._sizes[chosen].sum())
        self._queries[key] = _Unscanned(dict.fromkeys(clusters), left_bytes)
        self._uses[chosen] += 1
        for cluster in clusters:
            self._waiters.setdefault(cluster, {})[key] = None
        self._due.update(dict.fromkeys(map(ClusterId, chosen[self._is_there[chosen]].tolist())))

    def drop(self, key: int) -> None:
        """Forgets a query."""
        if (query := self._queries.pop(key, None)) is not None:
            for cluster in query.left:
                del self._waiters[cluster][key]

    def expect(self, next_window: Mapping[ClusterId, int]) -> None:
        """A window begins. `next_window`: in how many windows a cluster is needed next.

        It is advice: clusters that the index does not have are ignored.
        """
        self._uses *= KEPT_AT_A_WINDOW
        self._next_window[:] = FAR
        for cluster, windows in next_window.items():
            if 0 <= cluster < len(self._next_window):
                self._next_window[cluster] = windows

    def fail(self, cluster: ClusterId) -> tuple[int, ...]:
        """The codes of a cluster could not be read.

        Returns the queries that wait for it: they go on without it.
        """
        if self._is_there[cluster]:
            self._is_there[cluster] = False
            self._free_bytes += self._size_bytes[cluster]
            self._due.pop(cluster, None)
        return self._take_waiters(cluster)

    # ---- what to do

    def plan(self) -> list[Step]:
        """Returns the steps that complete at least one query; none if there is no query."""
        steps: list[Step] = []
        for cluster in self._due:
            if keys := self._take_waiters(cluster):
                steps.append(ScanCodes(cluster, keys))
        self._due.clear()
        if self._queries:
            # First those that most queries wait for.
            left = self._queries[self._next_key()].left
            for cluster in sorted(left, key=lambda one: -len(self._waiters[one])):
                size_bytes = self._size_bytes[cluster]
                if self._free_bytes < size_bytes:
                    self._evict(size_bytes, steps)
                self._is_there[cluster] = True
                self._free_bytes -= size_bytes
                steps.append(ReadCodes(cluster, self._take_waiters(cluster)))
        return steps

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books disagree."""
        there = np.flatnonzero(self._is_there).tolist()
        used_bytes = sum(self._size_bytes[cluster] for cluster in there)
        assert used_bytes + self._free_bytes == self._budget_bytes and self._free_bytes >= 0
        for key, query in self._queries.items():
            assert query.left_bytes == sum(self._size_bytes[cluster] for cluster in query.left)
            assert query.left and all(key in self._waiters[cluster] for cluster in query.left)
        pairs = sum(map(len, self._waiters.values()))
        assert pairs == sum(len(query.left) for query in self._queries.values())
        assert all(
            cluster in self._due
            for cluster, waiters in self._waiters.items()
            if waiters and self._is_there[cluster]
        )

    def _next_key(self) -> int:
        oldest = next(iter(self._queries))
        if self._queries[oldest].overtaken >= OVERTAKEN_MAX:
            return oldest
        queries = self._queries
        key = min(queries, key=lambda one: queries[one].left_bytes)  # the first of equals
        if key != oldest:
            queries[oldest].overtaken += 1
        return key

    def _take_waiters(self, cluster: ClusterId) -> tuple[int, ...]:
        """Returns the queries that wait for a cluster, which wait for it no longer."""
        keys = tuple(self._waiters.pop(cluster, ()))
        for key in keys:
            query = self._queries[key]
            del query.left[cluster]
            query.left_bytes -= self._size_bytes[cluster]
            if not query.left:
                del self._queries[key]
        return keys

    def _evict(self, needed_bytes: int, steps: list[Step]) -> None:
        """Evicts what the next windows need last. No query waits for a cluster in memory."""
        wanted_bytes = max(needed_bytes, self._budget_bytes // EVICTED_SHARE)
        there = np.flatnonzero(self._is_there & (self._sizes > 0))
        order = np.lexsort((self._uses[there], -self._next_window[there]))
        for cluster in map(ClusterId, there[order].tolist()):
            if self._free_bytes >= wanted_bytes:
                return
            steps.append(EvictCodes(cluster))
            self._is_there[cluster] = False
            self._free_bytes += self._size_bytes[cluster]
