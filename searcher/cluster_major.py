"""Each cluster once for all queries in hand: the driver of `ClusterMajorPlanner`, on the search
thread.

Everything that happens elsewhere (groups that join, queries dropped, reads that ended) is left in a
mailbox. Between two sub-stages the search thread empties it, does what the planner says, and scores
what the planner gives out, on several threads. Reads go on meanwhile: enough are under way at any
time (`read_ahead_bytes`).

The planner works on slices of clusters (`searcher.memory.slices`). Queries and results name
clusters.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from carpool.clock import Clock
from carpool.errors import RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from schemas.retrieval import Probe, Tier
from searcher.events import EventLog
from searcher.executor import Finish, ReadError, Search, SearchGroup, SearchResult
from searcher.memory.cluster_memory import ClusterMemory, MemoryEvent, ReadBroke, ReadDone
from searcher.memory.cluster_memory import SpaceFreed as MemoryFreed
from searcher.memory.slices import Slices
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cluster_steps import (
    Action,
    Cancel,
    Dropped,
    Event,
    Evict,
    Joined,
    Promote,
    Read,
    ReadEnded,
    ReadFailed,
    Skip,
    SpaceFreed,
    Substage,
    SubstageEnded,
    Wanted,
)
from searcher.plan.cluster_steps import Finish as FinishAction
from searcher.plan.substage import SubstageBudget
from searcher.scoring.pool import ScoringPool
from searcher.scoring.query_batch import QueryBatch, Scoring
from searcher.scoring.top_k import Float32, Slots, TopTable
from searcher.store.engine import CancelledRead

WAIT_S_MAX = 60.0
"""The longest wait for mail: no deadline, however far away, is more than a wait can take."""
STARVED = (
    "there was no memory to read it into: reads that never returned hold the budget. Check the "
    "disk; the queries that came meanwhile can be asked again"
)


@dataclass(frozen=True, slots=True)
class _Stop:
    """The last message."""


@dataclass(frozen=True, slots=True)
class _Drop:
    keys: tuple[int, ...]


_Message = SearchGroup | _Drop | _Stop | MemoryEvent


@dataclass(slots=True)
class _Query:
    search: Search
    slot: int
    tiers: dict[ClusterId, Tier]
    started_us: int
    search_us: int = 0
    bytes_read: int = 0
    errors: dict[ClusterId, ReadError] = field(default_factory=dict)  # by cluster


class ClusterMajor:
    """Implements `Executor`. Owns nothing that it is given: whoever made memory and pool closes
    them after `run` has ended.
    """

    def __init__(
        self,
        *,
        memory: ClusterMemory,
        slices: Slices,
        planner: ClusterMajorPlanner,
        pool: ScoringPool,
        metrics: Metrics,
        clock: Clock,
        events: EventLog,
    ) -> None:
        self._memory = memory
        self._slices = slices
        self._extents = slices.extents
        self._planner = planner
        self._pool = pool
        self._metrics = metrics
        self._clock = clock
        self._events = events
        tiers: tuple[Tier, ...] = ("ram", "ssd")
        self._requests = {
            tier: metrics.searcher.cluster_requests.labels(tier=tier) for tier in tiers
        }
        self._mailbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._table = TopTable()
        self._queries: dict[int, _Query] = {}
        self._deadlines: dict[int, int] = {}  # of the queries in hand that have one
        self._window: object = object()  # of the group that joined last
        self._errors: dict[ClusterId, ReadError] = {}  # why the read that just failed did
        self._budget = SubstageBudget()
        self._ahead: set[ClusterId] = set()  # read for nobody but the horizon, not wanted so far
        self._is_stopped = False

    # ---- from any thread

    def join(self, group: SearchGroup) -> None:
        """Takes in a group; see `Executor.join`."""
        self._mailbox.put(group)

    def drop(self, keys: Collection[int]) -> None:
        """Forgets searches; see `Executor.drop`."""
        self._mailbox.put(_Drop(tuple(keys)))

    def stop(self) -> None:
        """Ends `run` after the sub-stage that it is at; see `Executor.stop`."""
        self._mailbox.put(_Stop())

    # ---- the search thread

    def run(self, finish: Finish) -> None:
        """Searches what joins until it is stopped; see `Executor.run`."""
        self._memory.start(self._mailbox.put)
        while not self._is_stopped:
            began_us = self._clock.now_us()
            self._expire(began_us, finish)
            budget_us = self._budget.budget_us_for(len(self._planner))
            substage = self._planner.next_substage(budget_us, self._cost_us, began_us)
            if substage is None:
                self._take_mail(finish, self._wait_s(began_us))
                continue
            scored = self._score(substage)
            self._tell(SubstageEnded(), finish)
            took_us = self._note(substage, *scored)
            self._take_mail(finish, 0.0)
            self._budget.scheduled(self._clock.now_us() - began_us - took_us)

    def check_integrity(self) -> None:
        """Checks the books of planner and memory against each other; see
        `Executor.check_integrity`.
        """
        self._planner.check_integrity()
        self._memory.check_integrity()
        assert len(self._queries) == len(self._planner) == len(self._table)
        assert self._deadlines.keys() <= self._queries.keys()

    # ---- mail

    def _take_mail(self, finish: Finish, wait_s: float | None) -> None:
        """Takes everything that is there; waits for the first for `wait_s`, for as long as it takes
        if that is None.
        """
        groups: list[SearchGroup] = []
        for message in self._messages(wait_s):
            if isinstance(message, SearchGroup):
                groups.append(message)  # what came together joins together
                continue
            self._join(groups, finish)
            groups = []
            self._open(message, finish)
        self._join(groups, finish)

    def _messages(self, wait_s: float | None) -> list[_Message]:
        messages: list[_Message] = []
        try:
            if wait_s is None or wait_s > 0:
                messages.append(self._mailbox.get(timeout=wait_s))
            while True:
                messages.append(self._mailbox.get_nowait())
        except queue.Empty:
            return messages

    def _open(self, message: _Drop | _Stop | MemoryEvent, finish: Finish) -> None:
        match message:
            case ReadDone():
                self._tell(ReadEnded(cluster=message.cluster), finish)
            case ReadBroke():
                is_cancelled = isinstance(message.error, CancelledRead)
                self._waste(message.cluster)
                if not isinstance(message.error, CancelledRead):
                    self._errors[message.cluster] = message.error
                self._tell(
                    ReadFailed(
                        cluster=message.cluster,
                        is_stuck=message.is_stuck,
                        is_cancelled=is_cancelled,
                    ),
                    finish,
                )
                self._errors.clear()
            case MemoryFreed():
                self._tell(SpaceFreed(cluster=message.cluster), finish)
            case _Drop():
                for key in message.keys:
                    self._drop(key, finish)
            case _Stop():
                self._is_stopped = True

    def _wait_s(self, now_us: int) -> float | None:
        moments = [*self._deadlines.values()]
        if (wake_us := self._planner.wake_us()) is not None:
            moments.append(wake_us)
        return (
            min(max(0.0001, (min(moments) - now_us) / 1_000_000), WAIT_S_MAX) if moments else None
        )

    # ---- queries

    def _join(self, groups: list[SearchGroup], finish: Finish) -> None:
        if not groups:
            return
        horizon = None
        wanted = []
        now_us = self._clock.now_us()
        for group in groups:
            if group.window is None or group.window != self._window:
                # Where the horizon says nothing, the group after this one may be known.
                self._window = group.window
                foreseen = group.horizon or dict.fromkeys(group.next_query, 1)
                horizon = {
                    number: windows
                    for cluster, windows in foreseen.items()
                    for number in self._slices.of(cluster)
                }
            for search in group.searches:
                tiers = {cluster: self._tier(cluster) for cluster in search.clusters}
                for tier, count in Counter(tiers.values()).items():
                    self._requests[tier].inc(count)
                slot = self._table.add(search.top_k)
                self._queries[search.key] = _Query(
                    search=search, slot=slot, tiers=tiers, started_us=now_us
                )
                if search.deadline_us is not None:
                    self._deadlines[search.key] = search.deadline_us
                numbers = self._slices.of_all(search.clusters)
                wanted.append(
                    Wanted(query=search.key, clusters=numbers, deadline_us=search.deadline_us)
                )
        self._tell(Joined(queries=tuple(wanted), horizon=horizon), finish)

    def _tier(self, cluster: ClusterId) -> Tier:
        """Returns where a cluster is found by who asks for it now. In part in memory is not in
        memory.
        """
        numbers = self._slices.of(cluster)
        for number in self._ahead.intersection(numbers) if self._ahead else ():
            self._ahead.remove(number)
            result = "used" if self._planner.is_resident(number) else "late"
            self._metrics.searcher.prefetches.labels(result=result).inc()
        return "ram" if all(map(self._planner.is_resident, numbers)) else "ssd"

    def _waste(self, cluster: ClusterId) -> None:
        if cluster in self._ahead:
            self._ahead.remove(cluster)
            self._metrics.searcher.prefetches.labels(result="wasted").inc()

    def _drop(self, key: int, finish: Finish) -> None:
        if (query := self._queries.pop(key, None)) is not None:
            self._deadlines.pop(key, None)
            self._table.remove(query.slot)
            self._tell(Dropped(query=key), finish)

    def _expire(self, now_us: int, finish: Finish) -> None:
        for key in [key for key, deadline_us in self._deadlines.items() if now_us >= deadline_us]:
            search = self._queries[key].search
            self._drop(key, finish)
            finish(search, None)

    def _finish(self, action: FinishAction, finish: Finish) -> None:
        query = self._queries.pop(action.query)
        self._deadlines.pop(action.query, None)
        best = self._table.best(query.slot)
        self._table.remove(query.slot)
        took_us = self._clock.now_us() - query.started_us
        self._budget.retrieved(took_us)
        found = SearchResult(
            best=best,
            probes=tuple(
                Probe(cluster=cluster, tier=tier) for cluster, tier in query.tiers.items()
            ),
            skipped=tuple(dict.fromkeys(map(self._slices.cluster, action.skipped))),
            errors=tuple(query.errors.values()),
            bytes_read=query.bytes_read,
            started_us=query.started_us,
            load_us=max(0, took_us - query.search_us),
            search_us=query.search_us,
        )
        finish(query.search, found)

    # ---- doing what the planner says

    def _tell(self, event: Event, finish: Finish) -> None:
        for action in self._planner.step(event):
            self._do(action, finish)

    def _do(self, action: Action, finish: Finish) -> None:
        match action:
            case Evict():
                self._memory.evict(action.cluster)
                self._metrics.searcher.evictions.inc()
                self._waste(action.cluster)
            case Read():
                if action.query is not None and action.query in self._queries:
                    self._queries[action.query].bytes_read += self._extents[
                        action.cluster
                    ].size_bytes
                if action.query is None:
                    self._ahead.add(action.cluster)
                self._memory.begin_read(action.cluster, is_prefetch=action.query is None)
            case Promote():
                self._memory.promote(action.cluster)
            case Cancel():
                self._memory.cancel(action.cluster)
            case Skip():
                cluster = self._slices.cluster(action.cluster)
                error = self._errors.get(action.cluster) or RetryableError(
                    f"cluster {cluster}: {STARVED}"
                )
                for query in action.queries:
                    self._queries[query].errors.setdefault(cluster, error)
            case FinishAction():
                self._finish(action, finish)

    # ---- scoring

    def _cost_us(self, cluster: ClusterId, queries: int) -> int:
        return self._budget.cost_us(self._extents[cluster].row_count, queries)

    def _score(self, substage: Substage) -> tuple[int, int]:
        """Scores a sub-stage; returns when that began and ended, in epoch microseconds."""
        began_us = self._clock.now_us()
        places: dict[int, int] = {}  # of the queries, among those asked
        members: dict[tuple[int, ...], Slots] = {}
        scorings = []
        for task in substage.tasks:
            if task.queries not in members:
                at = [places.setdefault(key, len(places)) for key in task.queries]
                members[task.queries] = np.array(at, np.intp)
            scorings.append(Scoring(self._memory.pages(task.cluster), members[task.queries]))
        queries = [self._queries[key] for key in places]
        asked = QueryBatch(
            np.array([query.slot for query in queries], np.intp),
            _as_scanned([query.search.vector for query in queries]),
        )
        self._table.merge(self._pool.run(scorings, asked, self._table))
        ended_us = self._clock.now_us()
        share_us = (ended_us - began_us) // len(substage.tasks)
        for task in substage.tasks:
            for key in task.queries:
                self._queries[key].search_us += share_us
        return began_us, ended_us

    def _note(self, substage: Substage, began_us: int, ended_us: int) -> int:
        """Keeps what a sub-stage took, and returns it, in microseconds: after who was done with it
        has left.
        """
        took_us = ended_us - began_us
        for task in substage.tasks:
            self._events.scored(self._slices.cluster(task.cluster), began_us, ended_us)
        self._budget.scored(
            tuple(
                (self._extents[task.cluster].row_count, len(task.queries))
                for task in substage.tasks
            ),
            took_us,
        )
        return took_us


def _as_scanned(vectors: Sequence[Float32]) -> Float32:
    """Puts vectors together, (dim,) each, as the scan reads them fastest: (n, dim), with (dim, n)
    contiguous.
    """
    return vectors[0][None] if len(vectors) == 1 else np.stack(vectors, axis=1).T
