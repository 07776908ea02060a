"""Which clusters are in the hot shard, and how it changes while questions change. Pure.

HedraRAG, section 4.4: the clusters that are probed most are in the shard, and it changes at most
once in 50 sub-stages. VectorLiteRAG, section 4.1: it changes when the hot clusters have changed.
Neither says how that is known. Here the shard is filled anew from the counts of the next queries
when the hit rate has fallen (`page_test.py`): first with those of few queries, then of more. A
shard that is empty at the start is filled in the same way. Clusters that could not be loaded are
chosen again with the next queries.

*A sub-stage* is up to `QUERIES_A_SUBSTAGE` queries that came together, and more count as several.
*A change* is made in small parts, so that loads do not slow searches much.

A change of questions that does not lower the hit rate goes unnoticed: the shard still does what it
was sized for.

Cost: a sort of the clusters for each change, and a count for each probe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from carpool.arrays import Int64
from schemas.record import ClusterId
from searcher.plan.page_test import PageTest

QUERIES_A_SUBSTAGE = 8
SUBSTAGES_MIN = 50
"""Sub-stages from one change of the shard to the next (HedraRAG, section 4.4)."""
CHOICES = (100, 500, 2000)
"""Queries since the fall, or the start, after which the clusters are chosen anew."""
NEVER = 1 << 62
PART_SHARE = 0.01
"""Bytes that enter after one sub-stage, as a share of the shard; one cluster may be more.

To load a cluster takes a core less time than to search a query, and a sub-stage has up to eight:
so loads take little of the time that searches need.
"""


@dataclass(frozen=True, slots=True)
class Swaps:
    """A part of a change: first `leave` leave the shard, coldest first; then `enter` enter."""

    leave: tuple[ClusterId, ...]
    enter: tuple[ClusterId, ...]


class HotSwaps:
    """What is in the shard, and what is to be.

    The shard has at most `bytes_max` at any time if the steps of each `Swaps` are done in order.
    """

    def __init__(self, size_bytes: Int64, bytes_max: int) -> None:
        """`size_bytes`: (nlist,) int64, what each cluster takes in the shard, which is empty."""
        self._size_bytes = size_bytes
        self._bytes_max = bytes_max
        self._counts = np.zeros(len(size_bytes), np.int64)  # probes since the fall
        self._queries = 0  # since the fall
        self._chosen = 0  # of `CHOICES`, since the fall
        self._again_at = NEVER  # queries after which what could not be loaded is tried again
        self._held = np.zeros(len(size_bytes), bool)  # in the shard, or about to enter
        self._enter: deque[ClusterId] = deque()  # in this change, hottest first
        self._leave: deque[ClusterId] = deque()  # where they need room, coldest first
        self._running: set[ClusterId] = set()  # clusters that enter or leave now
        self._substages = 0  # since the last change began
        self._test = PageTest()

    # ---- what happens

    def add_queries(self, probes: Sequence[Collection[ClusterId]]) -> None:
        """Adds the clusters of each query of a window, or of a part of it."""
        for clusters in probes:
            self._counts[list(clusters)] += 1
        self._queries += len(probes)
        if self._enter or self._running:
            return  # the hit rate of a change that is half made says nothing
        rates = [float(self._held[list(clusters)].mean()) for clusters in probes if clusters]
        if self._test.has_fallen(rates):
            self._counts[:] = 0
            self._queries = self._chosen = 0
            self._test = PageTest()

    def loaded(self, cluster: ClusterId) -> None:
        """A cluster that was to enter is in the shard."""
        self._running.discard(cluster)

    def left(self, cluster: ClusterId) -> None:
        """A cluster takes no memory of the shard: it left, or it could not be loaded."""
        if self._held[cluster]:
            self._again_at = self._queries + CHOICES[-1]
        self._held[cluster] = False
        self._running.discard(cluster)

    # ---- what to do

    def substage(self) -> Swaps | None:
        """Counts a sub-stage and returns the next part of a change; None: nothing is to be done.

        The caller carries out the parts in order, and says of each cluster when it has `left` or is
        `loaded`; until then no other change begins.
        """
        self._substages += 1
        if not self._enter:
            due_at = CHOICES[self._chosen] if self._chosen < len(CHOICES) else self._again_at
            if self._running or self._queries < due_at or self._substages < SUBSTAGES_MIN:
                return None
            self._choose()
        return self._part() if self._enter else None

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the shard would have more than it may."""
        assert int(self._size_bytes[self._held].sum()) <= self._bytes_max

    def _choose(self) -> None:
        """Begins a change to the clusters with the highest counts that fit the shard."""
        order = np.argsort(-self._counts, kind="stable")
        fits = np.cumsum(self._size_bytes[order]) <= self._bytes_max
        wanted = np.zeros(len(order), bool)
        wanted[order[fits & (self._counts[order] > 0)]] = True
        self._enter = deque(map(ClusterId, order[(wanted & ~self._held)[order]].tolist()))
        self._leave = deque(map(ClusterId, order[(self._held & ~wanted)[order]][::-1].tolist()))
        self._substages = 0
        self._chosen = sum(self._queries >= known for known in CHOICES)
        self._again_at = NEVER
        self._test = PageTest()  # of the hit rate with the new clusters

    def _part(self) -> Swaps:
        """The next clusters enter, and as few of the coldest leave as they need."""
        enter, leave = [self._enter.popleft()], []
        entering_bytes = int(self._size_bytes[enter[0]])
        while self._enter:
            more_bytes = entering_bytes + int(self._size_bytes[self._enter[0]])
            if more_bytes > PART_SHARE * self._bytes_max:
                break
            enter.append(self._enter.popleft())
            entering_bytes = more_bytes
        needed_bytes = int(self._size_bytes[self._held].sum()) + entering_bytes - self._bytes_max
        while needed_bytes > 0:
            leave.append(self._leave.popleft())
            needed_bytes -= int(self._size_bytes[leave[-1]])
        self._held[leave] = False
        self._held[enter] = True
        self._running.update(leave, enter)
        return Swaps(tuple(leave), tuple(enter))
