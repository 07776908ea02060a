"""Cluster-major search: each slice is read once for all queries that want it, and scored for all
of them in one call.

VectorLiteRAG's dispatcher (section 4.2.2: a query leaves when its own clusters are done) over
HedraRAG's sub-stages (section 4.2): new queries join between two sub-stages. A state machine
without I/O; its only clock is `now_us`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

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
    ReadFailed,
    RoomFreed,
    SkipSlice,
    SubstageEnded,
    Task,
    Wanted,
)
from searcher.plan.demand import Demand, DoneQuery
from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.head_of_line import HeadOfLine
from searcher.plan.limits import ClusterMajorLimits
from searcher.plan.residency import Residency
from searcher.plan.slices import IN_SCORING, Room, Slice, SliceId, SliceTable, Work


class ClusterMajorPlanner:
    """Decides what to read, evict and score, and which queries are done.

    Reads and evictions depend only on the order of joins, horizons and scorings, never on disk
    timing; a read that is slower than `overtake_us` is the exception. Memory for the next read is
    reserved when a previously read slice has been scored. A slice that is evicted before it is
    scored is scored first, and the read that needs its room waits. Slices that were resident before
    are scored only while no slice that was read waits, so that the disk is never idle for them.
    Costs O(queries in progress) a slice.
    """

    def __init__(
        self, limits: ClusterMajorLimits, size_bytes: Mapping[SliceId, int], policy: FarthestNextUse
    ) -> None:
        """`size_bytes` has that of every slice; none is larger than the budget."""
        self._limits = limits
        self._policy = policy
        self._table = SliceTable(size_bytes)
        self._demand = Demand(limits.overtaken_max)
        self._memory = Residency(limits.budget_bytes, self._table, policy)
        self._scoring: tuple[Task, ...] = ()
        self._horizon: Mapping[SliceId, int] = {}
        self._to_read_ahead: dict[SliceId, None] = {}  # of the horizon, soonest first
        self._head = HeadOfLine(limits.overtake_us)

    def __len__(self) -> int:
        """Returns the number of queries in progress."""
        return len(self._demand)

    def is_resident(self, number: SliceId) -> bool:
        """Whether all of a slice is in memory."""
        one = self._table[number]
        return one.room is Room.RESIDENT or one.is_leaving

    def missing(self, query: int) -> tuple[SliceId, ...]:
        """Returns the slices that are not scored yet for a query in progress."""
        return tuple(one.id for one in self._demand.missing(query))

    def step(self, event: Event) -> tuple[Action, ...]:
        """Applies an event; returns the actions to carry out, in this order."""
        actions: list[Action] = []
        match event:
            case Joined():
                if event.horizon is not None:
                    self._set_horizon(event.horizon)
                for wanted in event.queries:
                    self._join(wanted, actions)
            case Dropped():
                self._drop(event.query, actions)
            case ReadEnded():
                self._end_read(self._table[event.slice_id])
            case ReadFailed():
                self._fail_read(event, actions)
            case RoomFreed():
                self._memory.free(self._table[event.slice_id])
            case SubstageEnded():
                self._end_substage(actions)
        self._read(actions)
        self._issue(actions)
        return tuple(actions)

    def next_substage(
        self, budget_us: int, cost_us: Callable[[SliceId, int], int], now_us: int
    ) -> tuple[Task, ...]:
        """Returns the slices to score next, in order, until `budget_us` is spent; at least one.

        First a slice that is to be evicted, alone, because a read waits for its memory; then slices
        that were read; then slices that were resident before. `cost_us(slice, queries)`
        estimates a scoring. Empty: nothing can be scored before the next event or `wake_us`. The
        previous sub-stage must have ended.
        """
        assert not self._scoring, "the previous sub-stage has not ended"
        table = self._table
        ready, expected = table.in_work(Work.READY), table.in_work(Work.EXPECTED)
        if not ready and not expected:
            self._head.forget()
            return ()
        tasks: list[Slice] = []
        spent_us = spent_bytes = 0
        # The reads in flight keep the disk busy for `read_ahead_bytes`: end before that is used up.
        is_disk_wanted = table.reading_bytes > 0 or self._demand.lacks_any()
        bytes_max = (
            self._limits.read_ahead_bytes // 2 if is_disk_wanted else self._limits.budget_bytes
        )
        leaving = [one for one in table.leaving() if one.work is Work.READY]
        arrived = () if leaving else self._head.arrived(expected, now_us)
        for one in leaving[:1] or arrived or tuple(ready):
            spent_us += cost_us(one.id, len(one.wanted_by))
            spent_bytes += one.size_bytes
            if tasks and (spent_us > budget_us or spent_bytes > bytes_max):
                break
            tasks.append(one)
        for one in tasks:
            is_read = one.work is Work.EXPECTED
            table.set_work(one, Work.SCORING_READ if is_read else Work.SCORING)
        self._scoring = tuple(Task(slice_id=one.id, queries=tuple(one.wanted_by)) for one in tasks)
        return self._scoring

    def wake_us(self) -> int | None:
        """Returns when `next_substage` may find work without another event; None: never."""
        return self._head.wake_us()

    # ---- queries

    def _join(self, wanted: Wanted, actions: list[Action]) -> None:
        wants, unfetched = [self._table[number] for number in wanted.slices], []
        for one in wants:
            self._policy.touch(one.id)
            self._to_read_ahead.pop(one.id, None)
            if one.work is not Work.NONE:
                continue  # in memory, or being read for another query
            if one.is_ahead:
                # Whether or not it has arrived: the order must not depend on that.
                self._table.set_ahead(one, False)
                self._expect(one)
                if one.room is Room.RESERVED:
                    one.reader = wanted.query
                elif one.is_being_read:
                    actions.append(Promote(slice_id=one.id))
            elif one.room is Room.RESIDENT:
                self._table.set_work(one, Work.READY)
            elif one.is_being_read:  # for queries that were dropped
                self._expect(one)
                if one.room is Room.READING:
                    actions.append(Promote(slice_id=one.id))
            else:
                unfetched.append(one)
        self._demand.add(
            wanted.query,
            wants,
            wanted.deadline_us,
            unfetched,
            is_nearest_first=wanted.is_nearest_first,
        )

    def _expect(self, one: Slice) -> None:
        """Pins a slice that was or is being read until it is scored for its queries."""
        self._table.set_work(one, Work.EXPECTED)
        self._demand.fetched(one)

    def _drop(self, query: int, actions: list[Action]) -> None:
        if query not in self._demand:
            return
        for one in self._demand.remove(query):
            if one.work in (Work.READY, Work.EXPECTED):
                self._release(one, actions)

    def _release(self, one: Slice, actions: list[Action]) -> None:
        """No query wants `one` any more: evicts it now if its eviction waited for that."""
        self._table.set_work(one, Work.NONE)
        if one.is_leaving:
            self._table.set_leaving(one, False)
            actions.append(Evict(slice_id=one.id))
        elif one.room is Room.READING:
            actions.append(Demote(slice_id=one.id))

    def _set_horizon(self, horizon: Mapping[SliceId, int]) -> None:
        known = {
            number: windows
            for number, windows in horizon.items()
            if number in self._table and windows > 0
        }
        self._policy.set_horizon(known)
        self._horizon = known
        self._to_read_ahead = dict.fromkeys(
            sorted(known, key=lambda number: (known[number], number))
        )

    # ---- scoring

    def _end_substage(self, actions: list[Action]) -> None:
        tasks, self._scoring = self._scoring, ()
        assert tasks, "there is no sub-stage to end"
        may_read = self._wants_reads()
        for task in tasks:
            one = self._table[task.slice_id]
            self._finish(self._demand.scored(one, task.queries), actions)
            if one.wanted_by:
                self._table.set_work(one, Work.READY)  # a query joined while it was being scored
            else:
                self._release(one, actions)
            if may_read:  # scoring never makes a query lack a slice
                # The later tasks count as not scored yet: reads must not depend on how slices were
                # put together in sub-stages.
                self._read(actions)

    def _finish(self, done: Iterable[DoneQuery], actions: list[Action]) -> None:
        """Ends queries whose last slice is scored or skipped.

        The one place that ends a query, so a second phase over its candidates (re-ranking) begins
        here: such a query would stay in progress until the phase reports its end as an event.
        """
        actions.extend(FinishQuery(query=query, skipped=skipped) for query, skipped in done)

    # ---- reads

    def _read(self, actions: list[Action]) -> None:
        """Reserves room: first for slices that queries want, then for slices of the horizon."""
        if not self._wants_reads():
            return
        while True:
            unscored_bytes = self._table.unscored_bytes
            if unscored_bytes >= self._limits.read_ahead_bytes > 0:
                return
            choice = self._demand.next_slice()
            if choice is None:
                break
            one, query = choice
            if unscored_bytes and unscored_bytes + one.size_bytes > self._limits.read_ahead_bytes:
                return
            victims = self._memory.reserve(one, query)
            if victims is not None:
                self._evict(victims, actions)
                self._expect(one)
            elif not self._table.fixed():  # only stuck reads take up the budget
                self._skip(one, actions)
            else:  # what is being read and no query wants any more leaves when it has come
                return
        self._read_ahead(actions)

    def _wants_reads(self) -> bool:
        return bool(self._to_read_ahead) or self._demand.lacks_any()

    def _issue(self, actions: list[Action]) -> None:
        """Issues the reads whose room is free, those that no query wants last."""
        reserved = sorted(self._table.in_room(Room.RESERVED), key=lambda one: not one.wanted_by)
        for one in reserved:
            is_full = self._table.occupied_bytes + one.size_bytes > self._limits.budget_bytes
            if one.is_leaving or is_full:
                return
            self._table.set_room(one, Room.READING)
            actions.append(Read(slice_id=one.id, query=one.reader))
            if one.reader is not None and not one.wanted_by:
                actions.append(Demote(slice_id=one.id))

    def _read_ahead(self, actions: list[Action]) -> None:
        """Reserves room for slices of the horizon, soonest first, up to `prefetch_bytes`."""
        for number in tuple(self._to_read_ahead):
            one = self._table[number]
            if one.room is Room.ABSENT:
                if self._table.ahead_bytes + one.size_bytes > self._limits.prefetch_bytes:
                    return
                victims = self._memory.reserve(one, None, self._is_wanted_later_than(number))
                if victims is None:
                    return
                self._evict(victims, actions)
            del self._to_read_ahead[number]

    def _is_wanted_later_than(self, number: SliceId) -> Callable[[Slice], bool]:
        windows = self._horizon[number]
        return lambda victim: self._horizon.get(victim.id, math.inf) > windows

    def _evict(self, victims: Iterable[Slice], actions: list[Action]) -> None:
        """Frees evicted slices, except those that are still to be scored."""
        actions.extend(Evict(slice_id=one.id) for one in victims if not one.is_leaving)

    def _end_read(self, one: Slice) -> None:
        self._table.set_room(one, Room.RESIDENT)

    def _fail_read(self, event: ReadFailed, actions: list[Action]) -> None:
        one = self._table[event.slice_id]
        self._memory.fail(one, is_stuck=event.is_stuck)
        if one.wanted_by:
            self._skip(one, actions)

    def _skip(self, one: Slice, actions: list[Action]) -> None:
        actions.append(SkipSlice(slice_id=one.id, queries=tuple(one.wanted_by)))
        self._finish(self._demand.skipped(one), actions)

    def check_integrity(self) -> None:
        """Raises `AssertionError` where queries, slices, budget and policy disagree."""
        self._demand.check_integrity()
        self._memory.check_integrity()
        scoring = {one.id for work in IN_SCORING for one in self._table.in_work(work)}
        assert scoring == {task.slice_id for task in self._scoring}
