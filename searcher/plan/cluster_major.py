"""Cluster-major search: each cluster is read once for all queries in hand that want it, and scored
for them in one call.

VectorLiteRAG's dispatcher (section 4.2.2: a query leaves when its own clusters are done, whoever
else is waiting) over HedraRAG's sub-stages (section 4.2): between two sub-stages new queries join.
A state machine; no time but `now_us`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from schemas.record import ClusterId
from searcher.plan.cluster_steps import (
    Action,
    Cancel,
    Dropped,
    Event,
    Evict,
    Finish,
    Joined,
    Promote,
    Read,
    ReadEnded,
    ReadFailed,
    Skip,
    SpaceFreed,
    Substage,
    SubstageEnded,
    Task,
    Wanted,
)
from searcher.plan.demand import Demand
from searcher.plan.eviction.policy import CachePolicy
from searcher.plan.head_of_line import HeadOfLine
from searcher.plan.limits import ClusterMajorLimits
from searcher.plan.residency import Residency


class ClusterMajorPlanner:
    """Decides what to read, evict, score and hand out. `size_bytes`: of every cluster, none larger
    than the budget.

    Which clusters are read and evicted depends on what joined, what was foreseen and what was
    scored, in their order, and not on when reads end: room is reserved when something that was read
    has been scored, that goes in the order of the reservations (but for reads that are slower than
    `overtake_us`), and what is resident may be chosen to go before it is scored: it is then scored
    first, and the read that needs its room waits. What else is resident is scored while nothing
    that was read waits, so that the disk never does. Costs O(queries in hand) a cluster.
    """

    def __init__(
        self, limits: ClusterMajorLimits, size_bytes: Mapping[ClusterId, int], policy: CachePolicy
    ) -> None:
        self._limits = limits
        self._size_bytes = size_bytes
        self._largest_bytes = max(size_bytes.values(), default=0)
        assert self._largest_bytes <= limits.budget_bytes, (
            "a cluster is larger than the whole budget"
        )
        self._policy = policy
        self._demand = Demand(size_bytes, limits.overtaken_max)
        self._memory = Residency(limits.budget_bytes, size_bytes, policy)
        self._ready: dict[
            ClusterId, None
        ] = {}  # in memory before they were wanted, in the order to score them
        self._coming: dict[
            ClusterId, None
        ] = {}  # read for queries in hand, in the order to score them
        self._leaving: dict[
            ClusterId, None
        ] = {}  # to be scored, and evicted in the books; truly so when scored
        self._unissued: dict[
            ClusterId, int | None
        ] = {}  # reads, first come first, that wait for the room of these
        self._here_bytes = 0  # what is truly in memory or on its way there
        self._scoring: tuple[Task, ...] = ()
        self._scoring_read: frozenset[ClusterId] = (
            frozenset()
        )  # of the sub-stage: what was read for queries in hand
        self._horizon: Mapping[ClusterId, int] = {}
        self._unread: dict[ClusterId, None] = {}  # of the horizon: not seen to yet, soonest first
        self._ahead: dict[ClusterId, None] = {}  # read ahead, not wanted so far
        self._cancelled: set[ClusterId] = set()
        self._turn = HeadOfLine(limits.overtake_us)

    def __len__(self) -> int:
        """Returns the queries in hand."""
        return len(self._demand)

    @property
    def used_bytes(self) -> int:
        """Bytes of the clusters that are resident, being read, or stuck."""
        return self._memory.used_bytes

    @property
    def reading_bytes(self) -> int:
        """Bytes of the reads in flight."""
        return self._memory.reading_bytes

    @property
    def ahead_bytes(self) -> int:
        """Bytes read ahead, or being read ahead, that nobody has asked for so far."""
        return self._sum_bytes(self._ahead)

    def is_resident(self, cluster: ClusterId) -> bool:
        """Whether `cluster` is in memory, whole."""
        return self._memory.is_resident(cluster) or cluster in self._leaving

    def step(self, event: Event) -> tuple[Action, ...]:
        """Takes in what happened; returns what to do now, in this order."""
        actions: list[Action] = []
        match event:
            case Joined():
                if event.horizon is not None:
                    self._foresee(event.horizon)
                for wanted in event.queries:
                    self._join(wanted, actions)
            case Dropped():
                self._drop(event.query, actions)
            case ReadEnded():
                self._end_read(event.cluster)
            case ReadFailed():
                self._fail_read(event, actions)
            case SpaceFreed():
                self._memory.freed(event.cluster)
                self._here_bytes -= self._size_bytes[event.cluster]
            case SubstageEnded():
                self._end_substage(actions)
        self._read(actions)
        self._issue(actions)
        return tuple(actions)

    def next_substage(
        self, budget_us: int, cost_us: Callable[[ClusterId, int], int], now_us: int
    ) -> Substage | None:
        """Returns what to score next: clusters in memory, in order, until `budget_us` is spent; at
        least one if there is one.

        First those whose room is waited for, one at a time, since the disk may stand still
        meanwhile; then those that were read; and only if there are none of these, the others.

        `cost_us(cluster, queries)` estimates a scoring. None: nothing is there, ask again after the
        next event or at `wake_us`. The one before must have ended.
        """
        assert not self._scoring, "the sub-stage before has not ended"
        if not self._ready and not self._coming:
            self._turn.forget()
            return None
        tasks: list[Task] = []
        spent_us = spent_bytes = 0
        # What is under way lasts the disk for `read_ahead_bytes`: it must be given more before that
        # is used up.
        bytes_max = (
            self._limits.read_ahead_bytes // 2
            if self._is_disk_wanted()
            else self._limits.budget_bytes
        )
        leaving = [cluster for cluster in self._leaving if cluster in self._ready]
        arrived = (
            () if leaving else self._turn.arrived(self._coming, self._memory.is_resident, now_us)
        )
        for cluster in leaving[:1] or arrived or tuple(self._ready):
            queries = self._demand.wanting(cluster)
            spent_us += cost_us(cluster, len(queries))
            spent_bytes += self._size_bytes[cluster]
            if tasks and (spent_us > budget_us or spent_bytes > bytes_max):
                break
            tasks.append(Task(cluster=cluster, queries=queries))
        self._scoring_read = frozenset(
            task.cluster for task in tasks if task.cluster in self._coming
        )
        for task in tasks:
            self._ready.pop(task.cluster, None)
            self._coming.pop(task.cluster, None)
        self._scoring = tuple(tasks)
        return Substage(tasks=self._scoring) if tasks else None

    def _is_disk_wanted(self) -> bool:
        return self._memory.reading_bytes > 0 or bool(self._unissued) or self._demand.lacks_any()

    def wake_us(self) -> int | None:
        """Returns when `next_substage` may find something without another event, None when it
        cannot.
        """
        return self._turn.wake_us()

    # ---- queries

    def _join(self, wanted: Wanted, actions: list[Action]) -> None:
        in_scoring, unfetched = {task.cluster for task in self._scoring}, []
        for cluster in wanted.clusters:
            self._policy.touch(cluster)
            self._unread.pop(cluster, None)
            if cluster in self._ready or cluster in self._coming or cluster in in_scoring:
                pass  # another query has seen to it
            elif cluster in self._ahead:
                # Whether or not it has arrived: the order must not depend on that.
                del self._ahead[cluster]
                self._expect(cluster)
                if cluster in self._unissued:
                    self._unissued[cluster] = wanted.query
                elif self._memory.is_reading(cluster):
                    actions.append(Promote(cluster=cluster))
            elif self._memory.is_resident(cluster):
                self._ready[cluster] = None
            elif self._memory.is_reading(cluster) and cluster not in self._cancelled:
                self._expect(cluster)
            else:
                unfetched.append(cluster)
        self._demand.add(wanted.query, wanted.clusters, wanted.deadline_us, unfetched=unfetched)

    def _expect(self, cluster: ClusterId) -> None:
        """`cluster` is being read, or was, for queries in hand: it stays until it is scored."""
        self._coming[cluster] = None
        self._memory.hold(cluster)
        self._demand.fetched(cluster)

    def _drop(self, query: int, actions: list[Action]) -> None:
        if query not in self._demand:
            return
        in_scoring = {task.cluster for task in self._scoring}
        for cluster in self._demand.remove(query):
            self._ready.pop(cluster, None)
            self._coming.pop(cluster, None)
            if cluster not in in_scoring:
                self._let_go(cluster, actions)

    def _let_go(self, cluster: ClusterId, actions: list[Action]) -> None:
        """Nobody wants `cluster` scored any more: it may go, and goes at once if its room is waited
        for.
        """
        self._memory.let_go(cluster)
        if cluster in self._leaving:
            del self._leaving[cluster]
            self._here_bytes -= self._size_bytes[cluster]
            actions.append(Evict(cluster=cluster))

    def _foresee(self, horizon: Mapping[ClusterId, int]) -> None:
        known = {
            cluster: windows
            for cluster, windows in horizon.items()
            if cluster in self._size_bytes and windows > 0
        }
        self._policy.set_horizon(known)
        self._horizon = known
        self._unread = dict.fromkeys(sorted(known, key=lambda cluster: (known[cluster], cluster)))

    # ---- what was scored

    def _end_substage(self, actions: list[Action]) -> None:
        tasks, self._scoring = self._scoring, ()
        assert tasks, "no sub-stage was given out"
        may_read = self._wants_reads()
        for position, task in enumerate(tasks):
            for done in self._demand.scored(task.cluster, task.queries):
                actions.append(Finish(query=done.query, skipped=done.skipped))
            if self._demand.wanting(task.cluster):
                self._memory.let_go(task.cluster)
                self._ready[task.cluster] = None  # somebody joined while it was being scored
            else:
                self._let_go(task.cluster, actions)
            if may_read:  # scoring never makes anything lacking that was not
                # The rest counts as not scored yet: what is read must not depend on how sub-stages
                # were put together.
                self._scoring = tasks[position + 1 :]
                self._read(actions)

    # ---- reads

    def _read(self, actions: list[Action]) -> None:
        """Reserves room and reads: first what queries in hand want, then what the horizon wants."""
        if not self._wants_reads():
            return
        while True:
            unscored_bytes = self._unscored_bytes()
            if unscored_bytes >= self._limits.read_ahead_bytes > 0:
                return
            choice = self._demand.next_cluster()
            if choice is None:
                break
            cluster, query = choice
            if (
                unscored_bytes
                and unscored_bytes + self._size_bytes[cluster] > self._limits.read_ahead_bytes
            ):
                return
            if self._memory.is_reading(cluster):  # cancelled, and its end not told yet
                return
            victims = self._memory.reserve(cluster)
            if victims is None:
                if self._is_starved():
                    self._skip(cluster, actions)
                    continue
                if self._cancel_unwanted(actions):
                    continue
                return
            self._evict(victims, actions)
            self._expect(cluster)
            self._unissued[cluster] = query
        self._read_ahead(actions)

    def _wants_reads(self) -> bool:
        """Whether anything is wanted, by queries in hand or by the horizon, that nobody has seen
        to.
        """
        return bool(self._unread) or self._demand.lacks_any()

    def _issue(self, actions: list[Action]) -> None:
        """Begins the reads whose room is truly there, those that only the horizon wants last."""
        for cluster, query in sorted(self._unissued.items(), key=lambda read: read[1] is None):
            here_bytes = self._here_bytes + self._size_bytes[cluster]
            if cluster in self._leaving or here_bytes > self._limits.budget_bytes:
                return
            self._here_bytes = here_bytes
            del self._unissued[cluster]
            actions.append(Read(cluster=cluster, query=query))

    def _read_ahead(self, actions: list[Action]) -> None:
        """Reads what the next windows want, soonest first; the largest cluster still fits beside
        it.

        So a demand never waits for bytes, and, since the store puts demand first, for the disk
        behind a few blocks at most.
        """
        for cluster in tuple(self._unread):
            if self._memory.is_resident(cluster) or self._memory.is_reading(cluster):
                del self._unread[cluster]
                continue
            if self.ahead_bytes + self._size_bytes[cluster] > self._limits.prefetch_bytes:
                return
            victims = self._memory.reserve_ahead(
                cluster,
                spare_bytes=self._largest_bytes,
                may_go=partial(self._is_wanted_later, self._horizon[cluster]),
            )
            if victims is None:
                return
            self._evict(victims, actions)
            del self._unread[cluster]
            self._ahead[cluster] = None
            self._unissued[cluster] = None

    def _is_wanted_later(self, windows: int, victim: ClusterId) -> bool:
        return self._horizon.get(victim, math.inf) > windows

    def _is_starved(self) -> bool:
        """Whether nothing will ever make room: all that is in the way are reads that do not come
        back.
        """
        return not self._memory.held() and not self._memory.unheld_reads()

    def _evict(self, victims: tuple[ClusterId, ...], actions: list[Action]) -> None:
        """They are gone in the books; what is still to be scored is truly gone when it is."""
        in_scoring = {task.cluster for task in self._scoring}
        for victim in victims:
            self._ahead.pop(victim, None)
            if victim in self._ready or victim in in_scoring:
                self._leaving[victim] = None
            else:
                self._here_bytes -= self._size_bytes[victim]
                actions.append(Evict(cluster=victim))

    def _cancel_unwanted(self, actions: list[Action]) -> bool:
        """A demand finds no room: what is being read for nobody in hand is cancelled. Whether some
        room came of it at once.
        """
        has_room = False
        for cluster in self._memory.unheld_reads():
            self._ahead.pop(cluster, None)
            if cluster in self._unissued:
                del self._unissued[cluster]
                self._memory.failed(cluster, is_stuck=False)
                has_room = True
            elif cluster not in self._cancelled:
                self._cancelled.add(cluster)
                actions.append(Cancel(cluster=cluster))
        return has_room

    def _end_read(self, cluster: ClusterId) -> None:
        self._cancelled.discard(cluster)
        self._memory.arrived(cluster)
        if cluster not in self._coming and self._demand.wanting(cluster):
            self._ready[cluster] = None  # it was cancelled, wanted again, and came all the same
            self._demand.fetched(cluster)

    def _fail_read(self, event: ReadFailed, actions: list[Action]) -> None:
        cluster = event.cluster
        self._cancelled.discard(cluster)
        self._ahead.pop(cluster, None)
        self._memory.failed(cluster, is_stuck=event.is_stuck)
        self._coming.pop(cluster, None)
        if not event.is_stuck:
            self._here_bytes -= self._size_bytes[cluster]
        if not self._demand.wanting(cluster):
            return
        if event.is_cancelled:
            self._demand.unfetched(cluster)
        else:
            self._skip(cluster, actions)

    def _skip(self, cluster: ClusterId, actions: list[Action]) -> None:
        actions.append(Skip(cluster=cluster, queries=self._demand.wanting(cluster)))
        actions.extend(
            Finish(query=done.query, skipped=done.skipped) for done in self._demand.skipped(cluster)
        )

    def _unscored_bytes(self) -> int:
        """What was read for queries in hand and is not scored; the sub-stage counts, or its length
        would change what is read.
        """
        scoring = (task.cluster for task in self._scoring if task.cluster in self._scoring_read)
        return self._sum_bytes(self._coming) + sum(self._size_bytes[cluster] for cluster in scoring)

    def _sum_bytes(self, clusters: Iterable[ClusterId]) -> int:
        return sum(self._size_bytes[cluster] for cluster in clusters)

    # ---- the books

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books do not agree with each other."""
        self._demand.check_integrity()
        self._memory.check_integrity()
        scoring = {task.cluster for task in self._scoring}
        assert not self._ready.keys() & self._coming.keys()
        assert not scoring & (self._ready.keys() | self._coming.keys())
        assert all(self.is_resident(cluster) for cluster in (*self._ready, *scoring))
        assert all(self._memory.is_resident(c) or self._memory.is_reading(c) for c in self._coming)
        assert all(self._demand.wanting(cluster) for cluster in (*self._ready, *self._coming))
        assert self._memory.held() == self._coming.keys() | (scoring & self._scoring_read)
        assert not self._ahead.keys() & self._memory.held()
        assert self._leaving.keys() <= self._ready.keys() | scoring
        assert all(self._memory.is_reading(cluster) for cluster in self._unissued)
        assert not self._leaving.keys() & self._memory.residents()
        assert self._here_bytes == self.used_bytes + self._sum_bytes(
            self._leaving
        ) - self._sum_bytes(self._unissued)
        assert self._here_bytes <= self._limits.budget_bytes
