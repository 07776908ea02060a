"""When is a window closed, prepared and planned? The pure scheduler behind `GrouperStage`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from carpool.loop.priority.deficit_round_robin import DeficitRoundRobin
from grouper.plan.pending_windows import PendingWindow, PendingWindows
from grouper.plan.window import Wait, WindowPlanner

LEAD_US = 1_000
"""How much earlier a window closes than its preparation and planning need before a commit."""

RECENT_US = 1_000_000
"""How long after a query of a lower class the pending records may be of that class."""

INTERACTIVE, BATCH = "interactive", "batch"
RANKS = {INTERACTIVE: 0, BATCH: 1}
"""The priority classes; a window of a lower rank leaves first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowLimits:
    """The limits of windows. `class_weights`: windows that a class closes in its turn."""

    queries_min: int
    queries_max: int
    window_us_max: int
    horizon_windows: int
    class_weights: Mapping[str, int]
    tenant_weights: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class NewQuery:
    """A query, for the scheduler. `deadline_us`: None if it has no deadline.

    `steps_done`: finished steps of its workflow.
    """

    query_id: int
    priority: str
    tenant: str
    size_bytes: int
    deadline_us: int | None
    steps_done: int = 0


class WindowScheduler:
    """Decides which window is closed, prepared and planned next.

    One window is prepared at a time, and one is planned at a time. A window that is not full closes
    only when no other window is about to leave. A full window closes as soon as the preparing
    thread is free, up to `horizon_windows` ahead of the one that leaves.

    Each priority class has windows of its own. The classes close windows in turns, by weight. A
    window of a higher class leaves before closed windows of lower classes, and does not wait for
    more records while such windows are pending.

    When groups leave with a commit, a window closes just in time for the next commit: closed
    sooner, it would contain fewer queries and leave no sooner.

    The end of a step closes the next window, unless queries were added since the last tick. Then
    the next tick decides: it knows how many records are pending. Not thread-safe.
    """

    def __init__(self, limits: WindowLimits) -> None:
        """Starts without queries."""
        self._limits = limits
        self._horizon_windows = limits.horizon_windows
        ids = count()
        self._planners = {
            name: WindowPlanner(
                queries_min=limits.queries_min,
                queries_max=limits.queries_max,
                window_us_max=limits.window_us_max,
                weight_of=lambda tenant: limits.tenant_weights.get(tenant, 1),
                window_ids=ids,
            )
            for name in RANKS
        }
        self._turns = DeficitRoundRobin(
            quantum=limits.queries_max, weight_of=limits.class_weights.__getitem__
        )
        for name in RANKS:
            self._turns.join(name)
        self._pending = PendingWindows(overtaken_max=limits.class_weights[INTERACTIVE])
        self._deadlines_us: dict[int, int] = {}
        self._expires_us: int | None = None  # no deadline is earlier
        self._pending_records = 0
        self._next_commit_at_us = 0
        self._took_us = {"prepare": 0, "plan": 0}  # for the last window
        self._added_us = dict.fromkeys(RANKS, -RECENT_US)
        self._is_tick_due = False

    @property
    def size_bytes(self) -> int:
        """The bytes of the gathered queries and of the pending windows."""
        gathered = sum(planner.size_bytes for planner in self._planners.values())
        return gathered + self._pending.size_bytes

    @property
    def windows(self) -> tuple[PendingWindow, ...]:
        """The closed windows that have not left, in the order in which they leave."""
        return self._pending.all

    @property
    def to_prepare(self) -> PendingWindow | None:
        """The window to prepare next."""
        return self._pending.unprepared

    def ahead(self) -> list[PendingWindow]:
        """Returns the prepared windows behind the one that is leaving."""
        return [pending for pending in self._pending.remaining if pending.is_prepared]

    def add(self, query: NewQuery, now_us: int) -> None:
        """Gathers a query for a later window."""
        planner = self._planners[query.priority]
        planner.add(query.query_id, query.size_bytes, now_us, query.tenant, query.steps_done)
        self._added_us[query.priority] = now_us
        self._is_tick_due = True
        if query.deadline_us is not None:
            self._deadlines_us[query.query_id] = query.deadline_us
            self._expires_us = earliest(self._expires_us, query.deadline_us)

    def tick(self, now_us: int, *, pending_records: int, next_commit_at_us: int) -> int | None:
        """Closes the window that is due; returns when to call this again.

        `pending_records`: records that will arrive and for which there is credit.
        `next_commit_at_us`: when finished groups leave; 0: immediately.
        """
        self._pending_records = pending_records
        self._next_commit_at_us = next_commit_at_us
        self._is_tick_due = False
        return earliest(self._close_due(now_us), self._expires_us)

    def prepared(self, pending: PendingWindow, now_us: int, took_us: int) -> None:
        """Notes that the window is prepared, and closes the next one."""
        pending.is_prepared = True
        self._step_ended("prepare", now_us, took_us)

    def can_leave(self) -> bool:
        """Returns whether a window can be planned now."""
        return self._pending.can_leave()

    def leave(self) -> PendingWindow:
        """Returns the window to plan now. Its queries do not expire any more."""
        return self._pending.leave()

    def left(self, now_us: int, took_us: int) -> PendingWindow:
        """Removes the window that was planned and returns it; closes the next one."""
        done = self._pending.left()
        for query_id in done.query_ids:
            self._deadlines_us.pop(query_id, None)
        self._step_ended("plan", now_us, took_us)
        return done

    def expire(self, now_us: int) -> tuple[int, ...]:
        """Removes the queries whose deadline has passed, except those of the leaving window.

        Returns their ids in order of arrival.
        """
        if self._expires_us is None or now_us < self._expires_us:
            return ()
        leaving = self._pending.leaving_ids
        deadlines_us = {
            query_id: deadline_us
            for query_id, deadline_us in self._deadlines_us.items()
            if query_id not in leaving
        }
        late = tuple(query_id for query_id, at_us in deadlines_us.items() if at_us <= now_us)
        self.forget(frozenset(late))
        self._expires_us = earliest(*(at_us for at_us in deadlines_us.values() if at_us > now_us))
        return late

    def forget(self, query_ids: frozenset[int]) -> None:
        """Removes these queries wherever they are; unknown ones are ignored."""
        for planner in self._planners.values():
            planner.drop(query_ids)
        self._pending.forget(query_ids)
        for query_id in query_ids & self._deadlines_us.keys():
            del self._deadlines_us[query_id]

    def turn_horizon_off(self) -> None:
        """From now on no window closes ahead of the one that leaves."""
        self._horizon_windows = 0

    def check_integrity(self) -> None:
        """Asserts what must hold between two calls."""
        for planner in self._planners.values():
            planner.check_integrity()
        self._pending.check_integrity()
        assert self._deadlines_us.keys() <= set(self.query_ids())

    def query_ids(self) -> list[int]:
        """Returns the ids of all queries that have not left: gathered, then pending."""
        gathered = [query_id for planner in self._planners.values() for query_id in planner.ids()]
        pending = [query_id for each in self._pending.all for query_id in each.query_ids]
        return gathered + pending

    def _close_due(self, now_us: int) -> int | None:
        """Closes the window that is due; returns when one will be due if none is."""
        waits = {name: self._wait(name, now_us) for name in RANKS}
        queries_max = self._limits.queries_max
        name = self._turns.next(
            lambda name: (
                min(self._planners[name].queries, queries_max) if waits[name] is None else None
            )
        )
        if name is None:
            return earliest(*(wait.until_us for wait in waits.values() if wait is not None))
        planner = self._planners[name]
        gathered_bytes = planner.size_bytes
        window = planner.close(now_us)
        self._pending.add(
            PendingWindow(
                window=window,
                rank=RANKS[name],
                query_ids=window.query_ids,
                size_bytes=gathered_bytes - planner.size_bytes,
            )
        )
        return None

    def _wait(self, name: str, now_us: int) -> Wait | None:
        """How long to wait for the next window of a class; None: it is due."""
        ahead = self._pending.count(RANKS[name])
        lower = [other for other in RANKS if RANKS[other] > RANKS[name]]
        # The pending records may be of a lower class that has windows or had records recently.
        has_lower = len(self._pending.all) > ahead or any(
            now_us < self._added_us[other] + RECENT_US for other in lower
        )
        return self._planners[name].wait(
            now_us,
            0 if has_lower else self._pending_records,
            busy=self.to_prepare is not None or ahead > self._horizon_windows,
            ahead=ahead > 0,
            due_us=self._next_commit_at_us - sum(self._took_us.values()) - LEAD_US,
        )

    def _step_ended(self, step: str, now_us: int, took_us: int) -> None:
        self._took_us[step] = took_us
        if not self._is_tick_due:
            self._close_due(now_us)


def earliest(*times_us: int | None) -> int | None:
    """Returns the earliest time; None if there is none."""
    return min((time_us for time_us in times_us if time_us is not None), default=None)
