"""The planner of reads: which cluster to read next, what to evict, and what to read ahead.

A state machine (`step(event) -> actions`) that accounts for every byte of the budget. Demand reads
(what the current query lacks) go first. Reading ahead is CaGR-RAG's opportunistic prefetch (section
3.2.2, Alg. 1 step 4), in two readings:

- `after_group`, as Alg. 1 prints it: after the last search of a group, the clusters of the next
  group's first query are read. They evict by policy, each other included; none is pinned. A query
  that begins meanwhile joins the reads in flight: the paper does not define this case, and a second
  read of the same cluster would only cost more.
- `overlapped`: reading starts as soon as the current query waits for no read and the budget has
  room for what the current group still wants and for the next query's clusters. Those are pinned
  until the next query begins.
"""

from __future__ import annotations

from collections import Counter, deque
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
    QueryBegan,
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
    """The limits of the planner: bytes, and clusters being read at a time by purpose."""

    budget_bytes: int
    demand_reads_max: int
    prefetch_reads_max: int
    prefetch: PrefetchMode


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
        # The current group: its queries that have not begun, and by how many queries, the current
        # one included, a cluster is still wanted.
        self._queries: deque[tuple[SliceId, ...]] = deque()
        self._wanted: Counter[SliceId] = Counter()
        self._may_read_ahead = True  # not between the beginnings of a group and its first query
        # The current query: demanded and not being read, in the order of the demand; demanded and
        # being read; granted and not released.
        self._waiting: dict[SliceId, None] = {}
        self._joined: set[SliceId] = set()
        self._leased: set[SliceId] = set()
        # The first query of the next group: its clusters; those of them that are kept for it,
        # resident or being read; those to be read after the group (`after_group` only).
        self._next: tuple[SliceId, ...] = ()
        self._pinned: set[SliceId] = set()
        self._due: dict[SliceId, None] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes of the clusters that are resident or being read."""
        return self._used_bytes

    @property
    def reading_bytes(self) -> int:
        """Bytes of the reads in flight."""
        return self._sum_bytes(self._reading.keys())

    def residents(self) -> frozenset[SliceId]:
        """Returns the clusters that are in memory, whole."""
        return frozenset(self._resident)

    def step(self, event: Event) -> tuple[Action, ...]:
        """Applies an event; returns what to do now, in this order."""
        actions: list[Action] = []
        match event:
            case GroupBegan():
                self._begin_group(event)
            case QueryBegan():
                self._begin_query(actions)
            case Released():
                self._leased.remove(event.cluster)
                self._wanted[event.cluster] -= 1
                if not self._wanted[event.cluster]:
                    del self._wanted[event.cluster]
            case GroupEnded():
                self._end_group()
            case ReadEnded():
                self._end_read(event.cluster, actions)
        self._read_demanded(actions)
        self._read_ahead(actions)
        return tuple(actions)

    # ---- the group and its queries

    def _begin_group(self, event: GroupBegan) -> None:
        assert not self._queries and not self._wanted, "the group before has not ended"
        self._queries.extend(event.queries)
        self._wanted.update(cluster for clusters in event.queries for cluster in clusters)
        self._next = event.next_query
        self._may_read_ahead = False

    def _end_group(self) -> None:
        assert not self._queries and not self._wanted, "a query of the group was not searched"
        if self._limits.prefetch == "after_group":
            here = self._resident | self._reading.keys()
            self._due = dict.fromkeys(cluster for cluster in self._next if cluster not in here)

    def _begin_query(self, actions: list[Action]) -> None:
        assert not (self._waiting or self._joined or self._leased), "a query is in progress"
        if not self._may_read_ahead:  # the first of its group: what was read ahead is for this one
            self._pinned.clear()
            self._may_read_ahead = True
        self._due.clear()
        for cluster in self._queries.popleft():
            self._policy.touch(cluster)
            self._pinned.discard(cluster)
            if cluster in self._resident:
                self._grant(cluster, "ram", actions)
            elif cluster in self._reading:
                self._joined.add(cluster)
            else:
                self._waiting[cluster] = None

    def _grant(self, cluster: SliceId, tier: Tier, actions: list[Action]) -> None:
        self._leased.add(cluster)
        actions.append(Grant(cluster=cluster, tier=tier))

    # ---- reads

    def _end_read(self, cluster: SliceId, actions: list[Action]) -> None:
        del self._reading[cluster]
        self._resident.add(cluster)
        self._policy.insert(cluster)
        if cluster in self._joined:
            self._joined.remove(cluster)
            self._grant(cluster, "ssd", actions)

    def _start_read(self, cluster: SliceId, purpose: Purpose, actions: list[Action]) -> None:
        self._make_room(cluster, actions)
        self._reading[cluster] = purpose
        self._used_bytes += self._size_bytes[cluster]
        assert self._used_bytes <= self._limits.budget_bytes, "the budget is overdrawn"
        actions.append(Read(cluster=cluster, purpose=purpose))

    def _may_start(self, purpose: Purpose) -> bool:
        in_flight = sum(1 for other in self._reading.values() if other == purpose)
        is_demand = purpose == "demand"
        limits = self._limits
        return in_flight < (limits.demand_reads_max if is_demand else limits.prefetch_reads_max)

    def _can_evict_enough(self, cluster: SliceId) -> bool:
        """Whether `cluster` fits beside what is being read or scored, which cannot be evicted."""
        kept_bytes = self.reading_bytes + self._sum_bytes(self._leased)
        return kept_bytes + self._size_bytes[cluster] <= self._limits.budget_bytes

    def _read_demanded(self, actions: list[Action]) -> None:
        """Reads what the current query lacks, nearest cluster first, within the limits."""
        while self._waiting and self._may_start("demand"):
            cluster = next(iter(self._waiting))
            if not self._can_evict_enough(cluster):
                return  # scoring or a read in flight will free enough
            del self._waiting[cluster]
            self._start_read(cluster, "demand", actions)
            self._joined.add(cluster)

    def _make_room(self, cluster: SliceId, actions: list[Action]) -> None:
        """Evicts by policy: first unwanted clusters, then those of this group, pinned ones last."""
        spared: tuple[Set[SliceId], ...] = (
            self._leased | self._pinned | self._wanted.keys(),
            self._leased | self._pinned,
            self._leased,
        )
        for protected in spared:
            while self._used_bytes + self._size_bytes[cluster] > self._limits.budget_bytes:
                victim = self._policy.victim(protected)
                if victim is None:
                    break
                self._pinned.discard(victim)
                self._policy.remove(victim)
                self._resident.remove(victim)
                self._used_bytes -= self._size_bytes[victim]
                actions.append(Evict(cluster=victim))

    # ---- reading ahead

    def _read_ahead(self, actions: list[Action]) -> None:
        """Reads for the next group, if the current query lacks nothing."""
        if self._waiting or self._joined or not self._may_read_ahead:
            return
        if self._limits.prefetch == "overlapped":
            self._read_pinned(actions)
        else:
            self._read_due(actions)

    def _read_due(self, actions: list[Action]) -> None:
        """Reads what is due after a group, nearest first (CaGR-RAG, Alg. 1, lines 35-37)."""
        while self._due and self._may_start("prefetch"):
            cluster = next(iter(self._due))
            if not self._can_evict_enough(cluster):
                return
            del self._due[cluster]
            self._start_read(cluster, "prefetch", actions)

    def _read_pinned(self, actions: list[Action]) -> None:
        here = self._resident | self._reading.keys()
        for cluster in self._next:
            if cluster in here and cluster not in self._pinned:
                if not self._has_room_ahead(cluster):
                    return
                self._pinned.add(cluster)
        for cluster in self._next:
            if cluster not in here:
                if not self._may_start("prefetch") or not self._has_room_ahead(cluster):
                    return
                self._pinned.add(cluster)
                self._start_read(cluster, "prefetch", actions)

    def _has_room_ahead(self, cluster: SliceId) -> bool:
        """Whether `cluster` fits without evicting what is wanted, pinned or being read.

        The largest cluster must still fit beside what is pinned or being read, so that a demand
        never waits for a prefetch.
        """
        ahead = self._pinned | self._reading.keys() | {cluster}
        budget_bytes = self._limits.budget_bytes
        return (
            self._sum_bytes(ahead | self._wanted.keys()) <= budget_bytes
            and self._sum_bytes(ahead) + self._largest_bytes <= budget_bytes
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
        assert self._pinned <= here
        assert not self._due.keys() & here
        by_purpose = Counter(self._reading.values())
        assert by_purpose["demand"] <= self._limits.demand_reads_max, "too many demand reads"
        assert by_purpose["prefetch"] <= self._limits.prefetch_reads_max, "too many prefetches"
        assert all(number > 0 for number in self._wanted.values())
        current = self._waiting.keys() | self._joined | self._leased
        assert current <= self._wanted.keys()
