"""Which clusters enter and leave the hot shard while questions change. Pure.

HedraRAG, section 4.4: the clusters that are probed most are in the shard, and it changes at most
once in 50 sub-stages. VectorLiteRAG, section 4.1: it changes when the hot clusters have changed.
Neither says how that is known. Here it is known from a test: the shard is *settled* until the hit
rate of queries has fallen (`page_test.py`). From then on it *follows* the queries: the clusters
with the highest counts replace others, until some hundred queries are known and another change
would gain little. Then it is settled again.

*A sub-stage* is one scan, of codes or of the shard.

*Counts* are decayed by query, not by window: windows have 1 query or 100, and a searcher with
little to do must not forget its hot set in 50 queries. *The horizon:* queries that wait in Kafka
are in the counts and in the test as those that arrived are, each once. *A change* is made
in small parts: the last are chosen by newer counts, and loads do not slow searches much.

A change of questions that does not lower the hit rate goes unnoticed: the shard still does what it
was sized for (VectorLiteRAG, section 4.1). Room that is free is filled without a test.

Cost: a sort of the clusters for each window, and for each cluster that enters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.record import ClusterId
from searcher.plan.page_test import PageTest

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

SUBSTAGES_MIN = 50
"""Sub-stages from one change of the shard to the next (HedraRAG, section 4.4)."""
MEMORY_QUERIES = 250
"""A query counts 1 / e after so many later ones. More: better counts. Fewer: newer counts."""
CHURN_SHARE = 0.5
"""Bytes that leave in one change, as a share of the shard; the last part may exceed it."""
PART_SHARE = 0.01
"""Bytes that enter after one sub-stage, as a share of the shard; one cluster may be more.

To load a cluster takes a core less time than to search a query, and a scan of codes is for up to
eight: so loads take little of the time that searches need.
"""
STAYS = 0.5
"""By how much the root of a cluster's count must exceed that of one in the shard to replace it.

The root of a count is uncertain by the same amount whatever the count is; this is one standard
deviation of the difference of two roots.
"""
FORGOTTEN_SHARE = 0.75
"""How much less the counts of earlier queries are worth when the hit rate has fallen."""
QUERIES_MIN = 60
"""Queries that must be known after that before clusters leave. Fewer choose the wrong clusters."""
FOLLOW_QUERIES_MIN = 500
"""Queries for which the shard follows at least: twice `MEMORY_QUERIES`."""
GAIN_MIN = 0.01
"""What another change must gain to be made after that, as a share of the probes."""


@dataclass(frozen=True, slots=True)
class Swaps:
    """A part of a change: first `leave` leave the shard, coldest first; then `enter` enter."""

    leave: tuple[ClusterId, ...]
    enter: tuple[ClusterId, ...]


def decayed_counts(probes: Sequence[Collection[int]], nlist: int) -> Float64:
    """Returns how often each cluster was probed: (nlist,) float64, the last queries count most.

    `probes`: the clusters of each query, in the order of arrival.
    """
    counts = np.zeros(nlist)
    for age, clusters in enumerate(reversed(probes)):
        counts[list(clusters)] += _kept(age)
    return counts


class HotSwaps:
    """What is in the shard, and what is to be.

    The shard has at most `bytes_max` at any time if the steps of each `Swaps` are done in order.
    """

    def __init__(
        self, size_bytes: Int64, bytes_max: int, hot: Collection[ClusterId], counts: Float64
    ) -> None:
        """`size_bytes`: (nlist,) int64, what each cluster takes in the shard.

        `hot`: the clusters that are in it, or are loaded first. `counts`: (nlist,) float64 of
        `decayed_counts`, which are expected to go on; all 0 if nothing is known.
        """
        self._size_bytes = size_bytes
        self._bytes_max = bytes_max
        self._counts = counts.astype(np.float64)
        self._waiting = np.zeros(len(size_bytes))  # probes of queries that wait in Kafka
        self._held = np.zeros(len(size_bytes), bool)  # in the shard, or about to enter
        self._held[list(hot)] = True
        self._wanted = self._held.copy()
        self._churn_bytes: int | None = None  # may still leave in this change; None: there is none
        self._entered = np.zeros(len(size_bytes), bool)  # in this change, or could not
        self._running: dict[ClusterId, None] = {}  # clusters that enter or leave now
        self._substages = 0  # since the last change began
        self._followed = 0.0  # queries known since the alarm
        self._settled: PageTest | None = None  # None: it follows
        if total := float(counts.sum()):
            share = float(counts[self._held].sum()) / total
            self._settled = PageTest(share, MEMORY_QUERIES)
        self.check_integrity()

    # ---- what happens

    def add_window(
        self, probes: Sequence[Collection[ClusterId]], horizon: Mapping[ClusterId, float] | None
    ) -> None:
        """Adds the clusters of each query of a window, or of a part of it.

        `horizon`: of each cluster, the queries that wait in Kafka and will probe it: all that are
        known now, not only new ones. None: as it was said last; only the first part of a window
        says it. It is advice: clusters that the index does not have are ignored.
        """
        nlist = len(self._counts)
        arrived, waiting = np.zeros(nlist), np.zeros(nlist)
        for clusters in probes:
            arrived[list(clusters)] += 1
        if horizon is None:
            waiting = self._waiting
        else:
            for cluster, queries in horizon.items():
                if 0 <= cluster < nlist:
                    waiting[cluster] = queries
        # A query that waited is not in the horizon any more when it arrives: it is known once.
        known = np.maximum(arrived + waiting - self._waiting, 0)
        self._counts = self._counts * _kept(len(probes)) + arrived
        self._waiting = waiting
        self._test(probes, known)
        self._wanted = self._best()

    def loaded(self, cluster: ClusterId) -> None:
        """A cluster that was to enter is in the shard."""
        self._held[cluster] = True
        self._running.pop(cluster, None)

    def left(self, cluster: ClusterId) -> None:
        """A cluster takes no memory of the shard: it left, or it could not be loaded."""
        self._held[cluster] = False
        self._running.pop(cluster, None)

    # ---- what to do

    def substage(self) -> Swaps | None:
        """Counts a sub-stage and returns the next part of a change; None: nothing is to be done.

        Few clusters enter at a time, chosen by the counts of that time. The caller carries out the
        parts in order, and says of each cluster when it has `left` or is `loaded`; until then no
        other change begins. A cluster enters at most once in a change.
        """
        self._substages += 1
        is_first = self._churn_bytes is None
        if self._churn_bytes is None:
            if self._running or self._substages < SUBSTAGES_MIN:
                return None
            self._churn_bytes = self._begin_change()
        part = self._part(self._churn_bytes)
        if part is None:
            self._churn_bytes = None
            return None
        if is_first:
            self._substages = 0
        self._churn_bytes -= int(self._size_bytes[list(part.leave)].sum())
        self._held[list(part.leave)] = False
        self._held[list(part.enter)] = True
        self._entered[list(part.enter)] = True
        self._running |= dict.fromkeys((*part.leave, *part.enter))
        return part

    @property
    def is_settled(self) -> bool:
        """Whether clusters leave only after the hit rate has fallen."""
        return self._settled is not None

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the shard would have more than it may."""
        assert int(self._size_bytes[self._held].sum()) <= self._bytes_max
        assert min(self._counts.min(initial=0), self._waiting.min(initial=0)) >= 0

    def _test(self, probes: Sequence[Collection[ClusterId]], known: Float64) -> None:
        """Tests the hit rate of the queries that became known. `known`: (nlist,), their probes."""
        hit_rates = [float(self._held[list(one)].mean()) for one in probes if one]
        known_probes = float(known.sum())
        if not hit_rates or not known_probes:
            return
        queries = known_probes * len(hit_rates) / sum(map(len, probes))
        if self._settled is None:
            self._followed += queries
        elif self._settled.has_fallen(float(known @ self._held) / known_probes, queries):
            self._settled = None
            self._followed = 0.0
            self._counts *= 1 - FORGOTTEN_SHARE
        else:
            self._settled.learn(hit_rates)

    def _gain(self) -> float:
        """The share of the probes that the wanted clusters have more than those in the shard."""
        counts = self._counts + self._waiting
        gained = float(counts[self._wanted].sum() - counts[self._held].sum())
        return gained / max(1.0, float(counts.sum()))

    def _best(self) -> Bool:
        """The hottest clusters that fit the shard: (nlist,)."""
        order = self._hottest_first()
        wanted = np.zeros(len(order), bool)
        wanted[order[np.cumsum(self._size_bytes[order]) <= self._bytes_max]] = True
        return wanted & (self._held | (self._counts + self._waiting > 0))

    def _hottest_first(self) -> Int64:
        """All clusters by count, those in the shard with a lead; equal ones by number."""
        lead = STAYS * self._held
        return np.argsort(-(np.sqrt(self._counts + self._waiting) + lead), kind="stable")

    def _begin_change(self) -> int:
        """Returns how many bytes may leave. Settles if another change would gain little."""
        has_followed = self._settled is None and self._followed >= FOLLOW_QUERIES_MIN
        if has_followed and self._gain() < GAIN_MIN:
            self._settled = PageTest()
        self._entered[:] = False
        may_leave = self._settled is None and self._followed >= QUERIES_MIN
        return int(CHURN_SHARE * self._bytes_max) if may_leave else 0

    def _part(self, churn_bytes: int) -> Swaps | None:
        """The hottest clusters enter, and as few of the coldest leave as they need.

        None: nothing is to enter, or it needs more than is free and may leave.
        """
        order = self._hottest_first()
        enter = order[(self._wanted & ~self._held & ~self._entered)[order]]
        if not len(enter):
            return None
        entering_bytes = np.cumsum(self._size_bytes[enter])
        fitting = int((entering_bytes <= PART_SHARE * self._bytes_max).sum())
        enter = enter[: max(1, fitting)]
        free_bytes = self._bytes_max - int(self._size_bytes[self._held].sum())
        needed_bytes = int(self._size_bytes[enter].sum()) - free_bytes
        leave = order[(self._held & ~self._wanted & ~self._entered)[order]][::-1]
        before_bytes = np.cumsum(self._size_bytes[leave]) - self._size_bytes[leave]
        leave = leave[before_bytes < needed_bytes]
        lacks_room = int(self._size_bytes[leave].sum()) < needed_bytes
        if lacks_room or (len(leave) and churn_bytes <= 0):
            return None
        return Swaps(tuple(map(ClusterId, leave.tolist())), tuple(map(ClusterId, enter.tolist())))


def _kept(queries: int) -> float:
    """What a count is worth after so many queries."""
    return float(np.exp(-queries / MEMORY_QUERIES))
