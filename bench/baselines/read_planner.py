"""The planner of reads: which cluster to read next, what to evict, and what to read ahead.

A state machine (`step(event) -> actions`) that keeps the accounting of the budget. Demand reads
(what the current query lacks) go first. Reading ahead is CaGR-RAG's opportunistic prefetch (section
3.2.2, Alg. 1 step 4), in two ways:

- `after_group`, as Alg. 1 prints it: after the last search of a group, the clusters of the next
  group's first query are read, and evict what the policy says, each other included; nothing is
  pinned. (A query that comes meanwhile joins the reads in flight; the paper does not say, and
  reading twice would only be worse.)
- `overlapped`, the default: it starts as soon as the current query waits for no read and the budget
  holds what the current group still wants *and* the next query's clusters, which are pinned until
  used: it overlaps with the group's searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Literal

from bench.baselines.read_steps import (
    Action,
    Event,
    Evict,
    Grant,
    GroupBegan,
    GroupEnded,
    PrefetchEnded,
    PrefetchResult,
    QueryBegan,
    QueryEnded,
    Read,
    ReadEnded,
    Released,
)
from schemas.retrieval import Tier
from searcher.events import Purpose
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.slices import SliceId

PrefetchMode = Literal["none", "after_group", "overlapped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadLimits:
    """What bounds the planner: bytes, and clusters being read at a time. `prefetch_reads_max` 0
    turns reading ahead off.
    """

    budget_bytes: int
    demand_reads_max: int
    prefetch_reads_max: int
    prefetch: PrefetchMode = "overlapped"


class ReadPlanner:
    """Owns the budget: every byte is counted before it is read. Searches one query at a time.

    `size_bytes` has every cluster of the index, none larger than the budget. Costs O(clusters of
    the group + resident clusters) a step. An event that cannot happen is an `AssertionError`.
    """

    def __init__(
        self, limits: ReadLimits, size_bytes: Mapping[SliceId, int], policy: CachePolicy
    ) -> None:
        self._limits = limits
        self._size_bytes = size_bytes
        self._largest_bytes = max(size_bytes.values(), default=0)
        assert self._largest_bytes <= limits.budget_bytes, (
            "a cluster is larger than the whole budget"
        )
        self._policy = policy
        self._resident: set[SliceId] = set()
        self._reading: dict[SliceId, Purpose] = {}
        self._used_bytes = 0
        # The current group: how many of its queries still want a cluster (the current one until it
        # releases it).
        self._queries: tuple[tuple[SliceId, ...], ...] = ()
        self._position = -1
        self._wanted: dict[SliceId, int] = {}
        # The current query.
        self._waiting: dict[
            SliceId, None
        ] = {}  # demanded, not being read; in the order of the demand
        self._joined: set[SliceId] = set()  # demanded, being read
        self._leased: set[SliceId] = set()  # granted, not released yet
        # What comes next.
        self._group_number = 0
        self._next: tuple[SliceId, ...] = ()
        self._pinned: dict[
            SliceId, int
        ] = {}  # resident or being read, to the number of the group they are kept for
        self._unused: set[SliceId] = set()  # read ahead, not asked for yet
        self._due: dict[
            SliceId, None
        ] = {}  # to be read now that the group has passed; `after_group` only

    @property
    def used_bytes(self) -> int:
        """Bytes of the clusters that are resident or being read."""
        return self._used_bytes

    @property
    def reading_bytes(self) -> int:
        """Bytes of the reads in flight."""
        return sum(self._size_bytes[cluster] for cluster in self._reading)

    @property
    def pinned_bytes(self) -> int:
        """Bytes kept for the next group, resident or being read."""
        return sum(self._size_bytes[cluster] for cluster in self._pinned)

    def residents(self) -> frozenset[SliceId]:
        """Returns the clusters that are in memory, whole."""
        return frozenset(self._resident)

    def step(self, event: Event) -> tuple[Action, ...]:
        """Applies an event; returns what to do now, in this order."""
        actions: list[Action] = []
        match event:
            case GroupBegan():
                self._begin_group(event, actions)
            case QueryBegan():
                self._begin_query(event.position, actions)
            case Released():
                self._leased.remove(event.cluster)
                self._want_less(event.cluster)
            case QueryEnded():
                self._end_query()
            case GroupEnded():
                self._end_group(actions)
                self._line_up_due()
            case ReadEnded():
                self._end_read(event.cluster, actions)
        self._read_demanded(actions)
        self._read_ahead(actions)
        return tuple(actions)

    # ---- the group and its queries

    def _begin_group(self, event: GroupBegan, actions: list[Action]) -> None:
        self._end_group(actions)
        self._group_number += 1
        self._queries = tuple(tuple(dict.fromkeys(clusters)) for clusters in event.queries)
        for clusters in self._queries:
            for cluster in clusters:
                self._wanted[cluster] = self._wanted.get(cluster, 0) + 1
        self._set_next(event.next_query, actions)

    def _end_group(self, actions: list[Action]) -> None:
        self._end_query()
        self._queries, self._position = (), -1
        self._wanted.clear()
        for cluster in [c for c, number in self._pinned.items() if number <= self._group_number]:
            self._unpin(cluster, "wasted", actions)

    def _line_up_due(self) -> None:
        if self._limits.prefetch == "after_group":
            here = self._resident | self._reading.keys()
            self._due = dict.fromkeys(cluster for cluster in self._next if cluster not in here)

    def _set_next(self, clusters: tuple[SliceId, ...], actions: list[Action]) -> None:
        # Advice: a cluster that this index does not have is ignored.
        known = (cluster for cluster in clusters if cluster in self._size_bytes)
        self._next = tuple(dict.fromkeys(known))
        self._due = {cluster: None for cluster in self._due if cluster in self._next}
        for cluster in [c for c in self._pinned if c not in self._next]:
            if self._pinned[cluster] > self._group_number:
                self._unpin(cluster, "wasted", actions)

    def _begin_query(self, position: int, actions: list[Action]) -> None:
        assert self._position < position < len(self._queries), (
            f"query {position} after {self._position}"
        )
        self._end_query()
        self._due.clear()
        for passed in self._queries[self._position + 1 : position]:
            for cluster in passed:
                self._want_less(cluster)
        self._position = position
        for cluster in self._queries[position]:
            self._policy.touch(cluster)
            if cluster in self._resident:
                self._unpin(cluster, "used", actions)
                self._grant(cluster, "ram", actions)
            elif cluster in self._reading:
                self._unpin(cluster, "late", actions)
                self._joined.add(cluster)
            else:
                self._waiting[cluster] = None

    def _end_query(self) -> None:
        for cluster in (*self._waiting, *self._joined, *self._leased):
            self._want_less(cluster)
        self._waiting.clear()
        self._joined.clear()
        self._leased.clear()

    def _want_less(self, cluster: SliceId) -> None:
        self._wanted[cluster] -= 1
        if not self._wanted[cluster]:
            del self._wanted[cluster]

    def _grant(self, cluster: SliceId, tier: Tier, actions: list[Action]) -> None:
        self._leased.add(cluster)
        actions.append(Grant(cluster=cluster, tier=tier))

    def _unpin(self, cluster: SliceId, result: PrefetchResult, actions: list[Action]) -> None:
        self._pinned.pop(cluster, None)
        if cluster in self._unused:
            self._unused.remove(cluster)
            actions.append(PrefetchEnded(cluster=cluster, result=result))

    # ---- reads

    def _end_read(self, cluster: SliceId, actions: list[Action]) -> None:
        del self._reading[cluster]
        self._resident.add(cluster)
        self._policy.insert(cluster)
        if cluster in self._joined:
            self._joined.remove(cluster)
            self._grant(cluster, "ssd", actions)

    def _start_read(self, cluster: SliceId, purpose: Purpose, actions: list[Action]) -> None:
        self._reading[cluster] = purpose
        self._used_bytes += self._size_bytes[cluster]
        assert self._used_bytes <= self._limits.budget_bytes, "the budget is overdrawn"
        actions.append(Read(cluster=cluster, purpose=purpose))

    def _reads_in_flight(self, purpose: Purpose) -> int:
        return sum(1 for other in self._reading.values() if other == purpose)

    def _read_demanded(self, actions: list[Action]) -> None:
        """Reads what the current query lacks, nearest cluster first, within the limits."""
        while self._waiting and self._reads_in_flight("demand") < self._limits.demand_reads_max:
            cluster = next(iter(self._waiting))
            used_bytes = self.reading_bytes + self._sum_bytes(self._leased)
            if used_bytes + self._size_bytes[cluster] > self._limits.budget_bytes:
                return  # scoring or a read in flight will free enough
            self._make_room(cluster, actions)
            del self._waiting[cluster]
            self._joined.add(cluster)
            self._start_read(cluster, "demand", actions)

    def _make_room(self, cluster: SliceId, actions: list[Action]) -> None:
        """Evicts by policy: first unwanted clusters, then those of this group, pinned ones last."""
        spared: tuple[Set[SliceId], ...] = (
            self._leased | self._pinned.keys() | self._wanted.keys(),
            self._leased | self._pinned.keys(),
            self._leased,
        )
        for protected in spared:
            while self._used_bytes + self._size_bytes[cluster] > self._limits.budget_bytes:
                victim = self._policy.victim(protected)
                if victim is None:
                    break
                self._evict(victim, actions)

    def _evict(self, victim: SliceId, actions: list[Action]) -> None:
        self._unpin(victim, "wasted", actions)
        self._policy.remove(victim)
        self._resident.remove(victim)
        self._used_bytes -= self._size_bytes[victim]
        actions.append(Evict(cluster=victim))

    # ---- reading ahead

    def _read_ahead(self, actions: list[Action]) -> None:
        """Reads for the next group, if the current query lacks nothing."""
        has_group_to_begin = bool(self._queries) and self._position < 0
        if (
            has_group_to_begin
            or self._waiting
            or self._joined
            or not self._limits.prefetch_reads_max
        ):
            return
        if self._limits.prefetch == "overlapped":
            self._read_pinned(actions)
        else:
            self._read_due(actions)

    def _read_due(self, actions: list[Action]) -> None:
        """Reads what is due after a group, nearest first (CaGR-RAG, Alg. 1, lines 35-37)."""
        while self._due and self._reads_in_flight("prefetch") < self._limits.prefetch_reads_max:
            cluster = next(iter(self._due))
            used_bytes = self.reading_bytes + self._sum_bytes(self._leased)
            if used_bytes + self._size_bytes[cluster] > self._limits.budget_bytes:
                return
            del self._due[cluster]
            self._make_room(cluster, actions)
            self._unused.add(cluster)
            self._start_read(cluster, "prefetch", actions)

    def _read_pinned(self, actions: list[Action]) -> None:
        absent = []
        for cluster in self._next:
            if cluster not in self._resident and cluster not in self._reading:
                absent.append(cluster)
            elif cluster not in self._pinned:
                if not self._has_room_ahead(cluster):
                    return
                self._pinned[cluster] = self._group_number + 1
        for cluster in absent:
            is_busy = self._reads_in_flight("prefetch") >= self._limits.prefetch_reads_max
            if is_busy or not self._has_room_ahead(cluster):
                return
            self._pinned[cluster] = self._group_number + 1
            self._make_room(cluster, actions)
            self._unused.add(cluster)
            self._start_read(cluster, "prefetch", actions)

    def _has_room_ahead(self, cluster: SliceId) -> bool:
        """Whether `cluster` fits without evicting what is wanted, pinned or being read.

        The largest cluster must still fit beside what is pinned or being read, so that a demand
        never waits for a prefetch, even where the advice was wrong.
        """
        ahead = self._pinned.keys() | self._reading.keys() | {cluster}
        claimed = ahead | self._wanted.keys()
        free_bytes = self._limits.budget_bytes
        return (
            self._sum_bytes(claimed) <= free_bytes
            and self._sum_bytes(ahead) + self._largest_bytes <= free_bytes
        )

    def _sum_bytes(self, clusters: Set[SliceId]) -> int:
        return sum(self._size_bytes[cluster] for cluster in clusters)

    # ---- the accounting

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the accounting is inconsistent."""
        here = self._resident | self._reading.keys()
        assert self._used_bytes == self._sum_bytes(here) <= self._limits.budget_bytes
        assert self._policy.residents() == self._resident
        self._policy.check_integrity()
        assert not self._resident & self._reading.keys()
        assert not self._waiting.keys() & here
        assert self._joined <= self._reading.keys()
        assert self._leased <= self._resident
        assert self._pinned.keys() <= here
        assert self._unused <= (
            self._pinned.keys() if self._limits.prefetch == "overlapped" else here
        )
        assert not self._due.keys() & here
        assert self._reads_in_flight("demand") <= self._limits.demand_reads_max, (
            "too many demand reads"
        )
        assert self._reads_in_flight("prefetch") <= self._limits.prefetch_reads_max, (
            "too many prefetches"
        )
        assert all(number > 0 for number in self._wanted.values())
        current = self._waiting.keys() | self._joined | self._leased
        assert current <= self._wanted.keys()
