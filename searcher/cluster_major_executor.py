"""The executor: carries out `ClusterMajorPlanner`'s decisions on the search thread.

Other threads leave messages in a mailbox: groups that join, queries that are dropped. Between two
sub-stages the search thread takes the messages and the reads that ended, carries out the actions of
the planner, and scores the next sub-stage on the scoring threads. The kernel reads meanwhile. The
planner works on slices of clusters; queries and results name clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from carpool.arrays import Float32
from carpool.clock import Clock
from carpool.codes.row_mask import RowMask
from carpool.errors import ReadError, RetryableError
from carpool.telemetry.metrics import Metrics
from schemas.record import ClusterId
from schemas.retrieval import Probe, Tier
from searcher.executor import Finish, Search, SearchDraft, SearchGroup, SearchResult
from searcher.memory.cluster_memory import ClusterMemory
from searcher.plan.cluster_major import ClusterMajorPlanner
from searcher.plan.cluster_steps import (
    Action,
    Demote,
    Dropped,
    Event,
    Evict,
    FinishQuery,
    Joined,
    Promote,
    Read,
    ReadEnded,
    ReadEvent,
    ReadFailed,
    RoomFreed,
    SkipSlice,
    SubstageEnded,
    Task,
    Wanted,
)
from searcher.plan.cut import Slices
from searcher.plan.read_speed import ReadSpeed
from searcher.plan.slices import SliceId
from searcher.plan.substage import SubstageBudget
from searcher.row_source import by_identity
from searcher.scoring.pool import ScoringPool
from searcher.scoring.scan import QueryBatch, Scoring
from searcher.scoring.top_k import Slots, TopTable
from searcher.search_loop import DropSearches, SearchLoop, StopSearching
from searcher.store.reader import NO_MEMORY
from searcher.store.waker import Waker


@dataclass(slots=True)
class _SearchState:
    search: Search
    slot: int
    tiers: dict[ClusterId, Tier]
    started_us: int
    search_us: int = 0
    bytes_read: int = 0
    clusters_drafted: int = 0  # done when the last draft was sent
    errors: dict[ClusterId, ReadError] = field(default_factory=dict)


class ClusterMajorExecutor(SearchLoop):
    """Implements `Executor`. Memory, pool and waker belong to the caller, who closes them after
    `run`.
    """

    def __init__(
        self,
        *,
        memory: ClusterMemory,
        slices: Slices,
        planner: ClusterMajorPlanner,
        pool: ScoringPool,
        waker: Waker,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`waker`: that of `memory`."""
        super().__init__(waker, clock)
        self._memory = memory
        self._slices = slices
        self._planner = planner
        self._pool = pool
        self._metrics = metrics.searcher
        self._table = TopTable()
        self._searches: dict[int, _SearchState] = {}
        self._failures: dict[SliceId, ReadError | None] = {}  # of the read that just failed
        self._budget = SubstageBudget()
        self._speed = ReadSpeed()
        self._ahead: set[SliceId] = set()  # read ahead, not wanted by a query so far

    # ---- the search thread

    def run(self, finish: Finish) -> None:
        """Runs searches until `stop`; see `Executor.run`."""
        while True:
            began_us = self._clock.now_us()
            self._take_messages(finish)
            if self._is_stopped:
                return
            self._expire(finish)
            self._advance_reads(finish)
            budget_us = self._budget.budget_us_for(len(self._planner))
            tasks = self._planner.next_substage(budget_us, self._cost_us, self._clock.now_us())
            if tasks:
                took_us = self._score(tasks)
                self._tell(SubstageEnded(), finish)
                self._send_drafts(tasks)
                self._budget.scheduled(self._clock.now_us() - began_us - took_us)
            elif self._mailbox.empty():
                self._wait(self._planner.wake_us(), self._memory.reader.times_out_at_us)

    def check_integrity(self) -> None:
        """Checks planner, memory and searches against each other; see `Executor`."""
        self._planner.check_integrity()
        self._memory.check_integrity()
        assert len(self._searches) == len(self._planner) == len(self._table)
        assert self._deadlines.keys() <= self._searches.keys()

    # ---- messages

    def _take_messages(self, finish: Finish) -> None:
        groups: list[SearchGroup] = []
        while not self._mailbox.empty():
            message = self._mailbox.get()
            if isinstance(message, SearchGroup):
                groups.append(message)  # groups that arrive together join together
                continue
            self._join(groups, finish)
            groups = []
            match message:
                case DropSearches():
                    for key in message.keys:
                        self._drop(key, finish)
                case StopSearching():
                    self._is_stopped = True
        self._join(groups, finish)

    # ---- reads

    def _advance_reads(self, finish: Finish) -> None:
        """Starts reads, and tells the planner of those that have ended, until nothing is new."""
        while events := self._memory.advance():
            for event in events:
                self._end_read(event, finish)

    def _end_read(self, event: ReadEvent, finish: Finish) -> None:
        number = event.slice_id
        if not isinstance(event, RoomFreed):
            size_bytes = self._size_bytes(number) if isinstance(event, ReadEnded) else 0
            self._speed.ended(size_bytes, self._clock.now_us())
        if isinstance(event, ReadFailed):
            self._count_wasted(number)
            self._failures[number] = event.error
        self._tell(event, finish)
        self._failures.clear()

    # ---- searches

    def _join(self, groups: list[SearchGroup], finish: Finish) -> None:
        if not groups:
            return
        horizon = None
        wanted = []
        now_us = self._clock.now_us()
        for group in groups:
            if self._begins_window(group):
                horizon = self._horizon(group)
            wanted += [self._begin(search, now_us) for search in group.searches]
        self._tell(Joined(queries=tuple(wanted), horizon=horizon), finish)

    def _horizon(self, group: SearchGroup) -> Mapping[SliceId, int]:
        """The horizon of a group, by slice."""
        return {
            number: windows
            for cluster, windows in group.horizon.items()
            for number in self._slices.of(cluster)
        }

    def _begin(self, search: Search, now_us: int) -> Wanted:
        tiers = {cluster: self._tier(cluster) for cluster in search.clusters}
        for tier, count in Counter(tiers.values()).items():
            self._metrics.cluster_requests.labels(tier=tier).inc(count)
        slot = self._table.add(search.top_k)
        self._searches[search.key] = _SearchState(search, slot, tiers, now_us)
        if search.deadline_us is not None:
            self._deadlines[search.key] = search.deadline_us
        slices = self._slices.of_all(search.clusters)
        wish = search.drafts
        return Wanted(
            query=search.key,
            slices=slices,
            deadline_us=search.deadline_us,
            is_nearest_first=wish is not None and self._expected_us(slices) > wish.after_us,
        )

    def _expected_us(self, slices: Sequence[SliceId]) -> int:
        """Returns how long it should take to read those of `slices` that are not in memory."""
        absent = (number for number in slices if not self._planner.is_resident(number))
        return self._speed.expected_us(sum(map(self._size_bytes, absent)))

    def _size_bytes(self, number: SliceId) -> int:
        return self._slices.extents[number].size_bytes

    def _tier(self, cluster: ClusterId) -> Tier:
        """Returns the tier of a cluster now: `ram` only if all of it is in memory."""
        slices = self._slices.of(cluster)
        for number in self._ahead.intersection(slices) if self._ahead else ():
            self._ahead.remove(number)
            result = "used" if self._planner.is_resident(number) else "late"
            self._metrics.prefetches.labels(result=result).inc()
        return "ram" if all(map(self._planner.is_resident, slices)) else "ssd"

    def _count_wasted(self, number: SliceId) -> None:
        if number in self._ahead:
            self._ahead.remove(number)
            self._metrics.prefetches.labels(result="wasted").inc()

    def _drop(self, key: int, finish: Finish) -> None:
        if (state := self._searches.pop(key, None)) is not None:
            self._deadlines.pop(key, None)
            self._table.remove(state.slot)
            self._tell(Dropped(query=key), finish)

    def _expire(self, finish: Finish) -> None:
        for key in self._late():
            search = self._searches[key].search
            self._drop(key, finish)
            finish(search, None)

    def _send_drafts(self, tasks: Sequence[Task]) -> None:
        """Sends a draft for each query that has a new cluster done and still takes long."""
        for key in dict.fromkeys(key for task in tasks for key in task.queries):
            state = self._searches.get(key)
            if state is None or (wish := state.search.drafts) is None:
                continue
            missing = self._planner.missing(key)
            total = len(state.search.clusters)
            done = total - len(set(map(self._slices.cluster, missing)))
            if done > state.clusters_drafted and self._expected_us(missing) > wish.after_us:
                state.clusters_drafted = done
                best = self._table.best(state.slot)
                wish.send(SearchDraft(best=best, clusters_done=done, clusters_total=total))

    def _finish(self, action: FinishQuery, finish: Finish) -> None:
        state = self._searches.pop(action.query)
        self._deadlines.pop(action.query, None)
        best, search = self._table.best(state.slot), state.search
        self._table.remove(state.slot)
        if search.fresh is not None:
            best = search.fresh.merged(best, search.vector, search.clusters, search.top_k)
        took_us = self._clock.now_us() - state.started_us
        self._budget.retrieved(took_us)
        result = SearchResult(
            best=best,
            probes=tuple(
                Probe(cluster=cluster, tier=tier) for cluster, tier in state.tiers.items()
            ),
            skipped=tuple(dict.fromkeys(map(self._slices.cluster, action.skipped))),
            errors=tuple(state.errors.values()),
            bytes_read=state.bytes_read,
            started_us=state.started_us,
            load_us=max(0, took_us - state.search_us),
            search_us=state.search_us,
        )
        finish(state.search, result)

    # ---- actions of the planner

    def _tell(self, event: Event, finish: Finish) -> None:
        for action in self._planner.step(event):
            self._do(action, finish)

    def _do(self, action: Action, finish: Finish) -> None:
        match action:
            case Evict():
                self._memory.evict(action.slice_id)
                self._metrics.evictions.inc()
                self._count_wasted(action.slice_id)
            case Read():
                self._begin_read(action)
            case Promote() | Demote():
                self._memory.requeue(action.slice_id, is_ahead=isinstance(action, Demote))
            case SkipSlice():
                cluster = self._slices.cluster(action.slice_id)
                error = self._failures.get(action.slice_id) or RetryableError(
                    f"cluster {cluster}: {NO_MEMORY}"
                )
                for query in action.queries:
                    self._searches[query].errors.setdefault(cluster, error)
            case FinishQuery():
                self._finish(action, finish)

    def _begin_read(self, action: Read) -> None:
        if action.query is None:
            self._ahead.add(action.slice_id)
        elif action.query in self._searches:
            state = self._searches[action.query]
            state.bytes_read += self._size_bytes(action.slice_id)
        self._speed.began(self._clock.now_us())
        self._memory.begin_read(action.slice_id, is_prefetch=action.query is None)

    # ---- scoring

    def _cost_us(self, number: SliceId, queries: int) -> int:
        return self._budget.cost_us(self._slices.extents[number].row_count, queries)

    def _score(self, tasks: tuple[Task, ...]) -> int:
        """Scores a sub-stage; returns how long it took, in microseconds."""
        began_us = self._clock.now_us()
        places: dict[int, int] = {}  # of the queries in the batch
        members: dict[tuple[int, ...], list[tuple[Slots, RowMask | None]]] = {}
        scorings = []
        for task in tasks:
            if task.queries not in members:
                masks = [self._searches[key].search.mask for key in task.queries]
                at = np.array([places.setdefault(key, len(places)) for key in task.queries])
                members[task.queries] = [(at[some], masks[some[0]]) for some in by_identity(masks)]
            pages = self._memory.pages(task.slice_id)
            scorings += [Scoring(pages, some, mask) for some, mask in members[task.queries]]
        states = [self._searches[key] for key in places]
        batch = QueryBatch(
            np.array([state.slot for state in states], np.intp),
            _stacked([state.search.vector for state in states]),
        )
        self._table.merge(self._pool.run(scorings, batch, self._table))
        took_us = self._clock.now_us() - began_us
        extents = self._slices.extents
        work = [(extents[task.slice_id].row_count, len(task.queries)) for task in tasks]
        self._budget.scored(tuple(work), took_us)
        for task in tasks:
            for key in task.queries:
                self._searches[key].search_us += took_us // len(tasks)
        return took_us


def _stacked(vectors: Sequence[Float32]) -> Float32:
    """(dim,) vectors -> (n, dim), stored as (dim, n) contiguous, which the scan reads fastest."""
    return vectors[0][None] if len(vectors) == 1 else np.stack(vectors, axis=1).T
