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
from typing import NamedTuple

import numpy as np

from carpool.arrays import Int64
from schemas.record import ClusterId

OVERTAKEN_MAX = 100
"""Queries that may be chosen before one that came earlier."""
KEPT_AT_A_WINDOW = 0.98
"""Share of the count of a cluster's uses that counts after a window."""
EVICTED_SHARE = 8
"""A full memory frees this part of the budget: a scan of few clusters is one of few queries."""
SLOTS_MIN = 16
"""Queries that a table has room for at first."""
FAR = 1 << 20
"""Windows until the next use of a cluster that no known window needs."""


class ReadCodes(NamedTuple):
    """The codes of a cluster are read into memory, and scanned for the queries `keys`, (n,)."""

    cluster: ClusterId
    keys: Int64


class ScanCodes(NamedTuple):
    """Codes in memory are scanned: `clusters[i]` for the query `keys[i]`, (n,) each."""

    keys: Int64
    clusters: Int64


class EvictCodes(NamedTuple):
    """The codes of a cluster leave memory, after all scans of earlier steps."""

    cluster: ClusterId


Step = ReadCodes | ScanCodes | EvictCodes


class PagedCodesPlanner:
    """Plans for the queries that joined and are not complete.

    What they wait for is a table, of a row for each query and a column for each cluster: a window
    has ten thousand pairs of these.
    """

    def __init__(self, size_bytes: Sequence[int], budget_bytes: int) -> None:
        """`size_bytes` has that of the codes of each cluster; none may exceed `budget_bytes`.

        Codes of no bytes are in memory.
        """
        self._free_bytes = budget_bytes
        self._budget_bytes = budget_bytes
        self._sizes = np.array(size_bytes, np.int64)
        self._is_there = self._sizes == 0
        self._next_window = np.full(len(size_bytes), FAR, np.int64)
        self._uses = np.zeros(len(size_bytes))
        self._slots: dict[int, int] = {}  # rows of the table by query, the oldest first
        self._free_slots: list[int] = []
        self._wants = np.zeros((0, len(size_bytes)), np.bool_)
        self._keys, self._left_bytes = np.zeros((2, 0), np.int64)  # of the row of each query
        self._waiting = np.zeros(len(size_bytes), np.int64)  # queries that wait for a cluster
        self._oldest, self._overtaken = -1, 0
        assert max(size_bytes, default=0) <= budget_bytes, "a cluster exceeds the budget"

    def __len__(self) -> int:
        """The number of queries that are not complete."""
        return len(self._slots)

    def not_in_memory(self, clusters: Int64) -> Int64:
        """Returns those of `clusters` that are not in memory after the steps planned so far."""
        absent: Int64 = clusters[~self._is_there[clusters]]
        return absent

    # ---- what happens

    def join(self, key: int, clusters: Int64) -> None:
        """Adds a query. `clusters`: (n,), at least one, each once."""
        if not self._free_slots:
            count = len(self._keys)
            self._free_slots = list(range(count, 2 * count + SLOTS_MIN))
            more = len(self._free_slots)
            self._wants = np.pad(self._wants, ((0, more), (0, 0)))
            self._keys, self._left_bytes = (
                np.pad(some, (0, more)) for some in (self._keys, self._left_bytes)
            )
        slot = self._slots[key] = self._free_slots.pop()
        self._keys[slot], self._left_bytes[slot] = key, self._sizes[clusters].sum()
        self._wants[slot, clusters] = True
        self._waiting[clusters] += 1
        self._uses[clusters] += 1

    def drop(self, key: int) -> None:
        """Forgets a query."""
        if (slot := self._slots.pop(key, None)) is not None:
            self._waiting -= self._wants[slot]
            self._wants[slot] = False
            self._free_slots.append(slot)

    def expect(self, next_window: Mapping[ClusterId, int]) -> None:
        """A window begins. `next_window` says in how many windows a cluster is needed next.

        It is advice: clusters that the index does not have are ignored.
        """
        self._uses *= KEPT_AT_A_WINDOW
        self._next_window[:] = FAR
        for cluster, windows in next_window.items():
            if 0 <= cluster < len(self._next_window):
                self._next_window[cluster] = windows

    def fail(self, cluster: ClusterId) -> Int64:
        """The codes of a cluster could not be read.

        Returns the queries that wait for it: they go on without it.
        """
        if self._is_there[cluster]:
            self._is_there[cluster] = False
            self._free_bytes += int(self._sizes[cluster])
        return self._take(np.array([cluster])).keys

    # ---- what to do

    def plan(self) -> list[Step]:
        """Returns the steps that complete at least one query; none if there is no query."""
        steps: list[Step] = []
        if len(due := np.flatnonzero(self._is_there & (self._waiting > 0))):
            steps.append(self._take(due))
        if not self._slots:
            return steps
        # First those that most queries wait for.
        left = np.flatnonzero(self._wants[self._next_slot()])
        left = left[np.argsort(-self._waiting[left], kind="stable")]
        ends = np.cumsum(self._waiting[left]).tolist()
        keys = self._take(left).keys
        sizes, starts = self._sizes[left].tolist(), [0, *ends[:-1]]
        for cluster, size_bytes, start, end in zip(left.tolist(), sizes, starts, ends, strict=True):
            if self._free_bytes < size_bytes:
                self._evict(size_bytes, steps)
            self._is_there[cluster] = True
            self._free_bytes -= size_bytes
            steps.append(ReadCodes(ClusterId(cluster), keys[start:end]))
        return steps

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books disagree."""
        used_bytes = int(self._sizes[self._is_there].sum())
        assert used_bytes + self._free_bytes == self._budget_bytes and self._free_bytes >= 0
        assert (self._waiting == self._wants.sum(axis=0)).all()
        slots = sorted(self._slots.values())
        assert np.flatnonzero(self._wants.any(axis=1)).tolist() == slots
        assert sorted([*slots, *self._free_slots]) == list(range(len(self._keys)))
        assert (self._left_bytes[slots] == self._wants[slots] @ self._sizes).all()

    def _next_slot(self) -> int:
        """Returns the row of the query whose turn it is."""
        slots = np.array(list(self._slots.values()))
        least = int(self._left_bytes[slots].argmin())  # the first of equals
        if (oldest := next(iter(self._slots))) != self._oldest:
            self._oldest, self._overtaken = oldest, 0
        if self._overtaken >= OVERTAKEN_MAX:
            least = 0
        self._overtaken += least > 0
        return int(slots[least])

    def _take(self, clusters: Int64) -> ScanCodes:
        """Returns the pairs of `clusters`, by cluster; nobody waits for them any longer."""
        at, slots = np.nonzero(self._wants[:, clusters].T)
        self._wants[:, clusters] = False
        self._waiting[clusters] = 0
        taken = ScanCodes(self._keys[slots], clusters[at])
        np.subtract.at(self._left_bytes, slots, self._sizes[taken.clusters])
        touched = np.unique(slots)
        for slot in touched[~self._wants[touched].any(axis=1)].tolist():
            del self._slots[int(self._keys[slot])]
            self._free_slots.append(slot)
        return taken

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
            self._free_bytes += int(self._sizes[cluster])
