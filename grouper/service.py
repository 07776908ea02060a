"""The grouper as a stage: queries gather into windows, two threads work on them, groups leave.

Which window is closed, prepared and planned next is decided in `grouper.plan.scheduler`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from carpool.clock import Clock
from carpool.kafka.records import TopicPartition
from carpool.loop.ends import one_by_one
from carpool.loop.stage import Credit, Done, Sink, Stage, Unit
from carpool.origins import deadline_us_of
from carpool.telemetry.metrics import Metrics
from carpool.worker import Worker
from carpool.workflow.program import Ran
from carpool.workflow.running import RunningPrograms
from carpool.workflow.workflows import Workflows
from grouper.admission import Admitted, IndexFacts, admit, lags_behind
from grouper.first_step import begins_workflow, begun, first_step
from grouper.plan.pending_windows import PendingWindow
from grouper.plan.scheduler import BATCH, INTERACTIVE, NewQuery, WindowLimits, WindowScheduler
from grouper.plan.tenants import parse_weights
from grouper.records import expired
from grouper.settings import GrouperSettings
from grouper.work import PreparedWindow, WindowWork
from schemas.errors import RecordError
from schemas.headers import tenant_of
from schemas.query import Query, finished_steps
from schemas.topics import is_batch

log = structlog.get_logger()
T = TypeVar("T")

INTERACTIVE_WEIGHT = 16
"""Windows of the class interactive that are closed for one of batch, while both have queries."""
INTAKE_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of the queries in the grouper at once."""


class GrouperStage(Stage[Query]):
    """Credit bounds the queries in it.

    One thread loads index and model, then embeds and probes closed windows. The other groups them,
    in order, and hands the groups over. Until all is loaded credit is zero. The windows that are
    prepared when a window leaves are its horizon: no window waits for it, and no window is prepared
    twice.
    """

    def __init__(
        self,
        *,
        settings: GrouperSettings,
        load: Callable[[], WindowWork],
        metrics: Metrics,
        clock: Clock,
        workflows: Workflows,
    ) -> None:
        """`load` is called once, on the preparing thread. It may block and raise `CarpoolError`."""
        self._settings = settings
        self._workflows = workflows
        self._programs = RunningPrograms(workflows, self._charge)
        self._load = load
        self._metrics = metrics
        self._clock = clock
        self._out: Sink  # from `start` on
        self._worker = Worker[WindowWork]("the centroids and the embedding model are being loaded")
        self._lock = threading.Lock()
        self._may_prepare = threading.Condition(self._lock)
        self._may_plan = threading.Condition(self._lock)
        # `_lock` guards all attributes below.
        self._scheduler = WindowScheduler(
            WindowLimits(
                queries_min=settings.window_queries_min,
                queries_max=settings.window_queries_max,
                window_us_max=settings.window_ms_max * 1_000,
                horizon_windows=settings.horizon_windows,
                class_weights={INTERACTIVE: INTERACTIVE_WEIGHT, BATCH: 1},
                tenant_weights=parse_weights(settings.tenant_weights),
            )
        )
        self._queries: dict[int, Admitted] = {}
        self._prepared: dict[int, PreparedWindow] = {}  # by window id
        self._is_draining = False
        metrics.workflow.steps_in_progress.labels(kind="retrieve").set_function(self._searches)

    def start(self, sink: Sink) -> None:
        """Starts the threads; one of them loads index and model."""
        self._out = sink
        self._worker.start(sink.fail, prepare=self._prepare, plan=self._plan)

    def credit(self) -> Credit:
        """Returns how many more queries and bytes fit."""
        with self._lock:
            credit = self._credit()
        return self._programs.left_of(credit.records, credit.size_bytes)

    def offer(self, unit: Unit[Query], now_us: int) -> None:
        """Gathers a query, or refuses one that does not fit the index.

        If a searcher has a newer index and returned the query, this member leaves its consumer
        group.
        """
        facts = self._work.facts
        if (reason := lags_behind(unit, facts)) is not None:
            self._out.leave_group(reason)
            return
        with self._refused(unit):
            deadline_us = deadline_us_of(unit.record, unit.message)
            is_late = deadline_us is not None and deadline_us <= now_us
            if is_late or not begins_workflow(unit.record):
                self._add(unit, facts, now_us)
                return
            unit = replace(unit, record=begun(unit.record, self._workflows))
            self._programs.ask(unit, unit.record, deadline_us, partial(self._begin, unit, facts))

    def _begin(self, unit: Unit[Query], facts: IndexFacts, ran: Ran) -> None:
        """Takes the first step of a workflow. Maybe on the thread that ran its program."""
        now_us = self._clock.now_us()
        with self._refused(unit):
            first = first_step(unit, ran, facts, now_us)
            if isinstance(first, Done):
                self._out.done(first)
            else:
                self._add(first, facts, now_us)

    @contextmanager
    def _refused(self, unit: Unit[Query]) -> Iterator[None]:
        """Refuses a unit where a `RecordError` is raised."""
        try:
            yield
        except RecordError as error:
            self._out.refuse(unit, error)

    def _charge(self, unit_id: int, error: Exception) -> None:
        """Ends the try of a query after an unexpected error of what follows its program."""
        self.revoke(frozenset({unit_id}), frozenset())
        self._out.charge(((unit_id, 0),), error)

    def _add(self, unit: Unit[Query], facts: IndexFacts, now_us: int) -> None:
        """Adds a query to a window. Raises `RecordError`."""
        query = admit(unit, facts)
        added = NewQuery(
            query_id=unit.id,
            priority=BATCH if is_batch(unit.source.topic) else INTERACTIVE,
            tenant=tenant_of(unit.message.headers),
            size_bytes=unit.message.size_bytes,
            deadline_us=query.deadline_us,
            steps_done=finished_steps(unit.record),
        )
        with self._lock:
            self._scheduler.add(added, now_us)
            self._queries[unit.id] = query

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Answers expired queries and closes the window that is due; returns the next time."""
        for unit in self._programs.late(now_us):  # without its first step, it expires in a window
            with self._refused(unit):
                self._add(unit, self._work.facts, now_us)
        with self._lock:
            late = [self._queries[query_id] for query_id in self._scheduler.expire(now_us)]
            self._forget(frozenset(query.unit.id for query in late))
        for query in late:
            one_by_one(
                (query,),
                lambda each: self._out.done(expired(each[0], now_us)),
                lambda each, error: self._out.charge(each.unit.owed, error),
            )
        with self._lock:
            credit = self._credit()
            has_room = credit.records > 0 and credit.size_bytes > 0
            # No window waits for records for which there is no credit.
            next_us = self._scheduler.tick(
                now_us,
                pending_records=waiting if has_room and not self._is_draining else 0,
                next_commit_at_us=0 if self._is_draining else next_commit_at_us,
            )
            self._notify()
            return next_us

    def revoke(self, unit_ids: frozenset[int], partitions: frozenset[TopicPartition]) -> None:
        """Forgets these queries. The loop discards groups of them that were handed over."""
        self._programs.forget(unit_ids)
        with self._lock:
            self._scheduler.forget(unit_ids)
            self._forget(unit_ids)

    def drain(self, until_us: int) -> None:
        """Waits for no more records: the next tick closes a window."""
        with self._lock:
            self._is_draining = True

    def not_ready(self) -> Sequence[str]:
        """Returns what is missing: index and model while they load, or what stopped this stage."""
        return self._worker.not_ready()

    def close(self) -> None:
        """Stops the threads. Blocks for up to a second: a batch of the model is not interrupted."""
        self._worker.close(self._stop)

    def pending_windows(self) -> tuple[PendingWindow, ...]:
        """Returns the closed windows that have not left, in the order in which they leave."""
        with self._lock:
            return self._scheduler.windows

    def check_integrity(self) -> None:
        """Asserts that scheduler and stage have the same queries and windows."""
        with self._lock:
            self._scheduler.check_integrity()
            assert set(self._scheduler.query_ids()) == self._queries.keys()
            assert {
                pending.window.window_id
                for pending in self._scheduler.windows
                if pending.is_prepared
            } == self._prepared.keys()

    def has(self, unit_id: int) -> bool:
        """See `grouper.work.LiveQueries`."""
        with self._lock:
            return unit_id in self._queries

    def take_out(self, unit_id: int) -> bool:
        """See `grouper.work.LiveQueries`."""
        with self._lock:
            is_live = unit_id in self._queries
            self._scheduler.forget(frozenset({unit_id}))
            self._forget(frozenset({unit_id}))
            return is_live

    def _stop(self) -> None:
        with self._lock:
            self._may_prepare.notify_all()
            self._may_plan.notify_all()

    @property
    def _work(self) -> WindowWork:
        assert self._worker.parts is not None, "there is no credit before all is loaded"
        return self._worker.parts

    # Called with the lock.

    def _credit(self) -> Credit:
        if self._worker.not_ready():
            return Credit(records=0, size_bytes=0)
        return Credit(
            records=max(0, self._settings.intake_queries_max - len(self._queries)),
            size_bytes=max(0, INTAKE_BYTES_MAX - self._scheduler.size_bytes),
        )

    def _forget(self, unit_ids: frozenset[int]) -> None:
        gone = unit_ids & self._queries.keys()
        for unit_id in gone:
            del self._queries[unit_id]
        if gone:
            for window_id, prepared in self._prepared.items():
                self._prepared[window_id] = prepared.only(self._queries.keys())

    def _notify(self) -> None:
        if self._scheduler.to_prepare is not None:
            self._may_prepare.notify()
        if self._scheduler.can_leave():
            self._may_plan.notify()

    def _await(self, condition: threading.Condition, find: Callable[[], T]) -> T | None:
        """Waits until `find` finds something, and returns it; None when the stage is closed."""
        condition.wait_for(lambda: self._worker.is_closed or find())
        return None if self._worker.is_closed else find()

    def _searches(self) -> int:
        with self._lock:
            return sum(each.unit.record.journal is not None for each in self._queries.values())

    # On the preparing thread.

    def _load_work(self) -> WindowWork:
        work = self._load()
        facts = work.facts
        if not work.needs_horizon:
            with self._lock:
                self._scheduler.turn_horizon_off()
        self._metrics.loop.index_info.labels(version=facts.index_version).set(1)
        log.info(
            "ready",
            index_version=facts.index_version,
            nlist=facts.nlist,
            nprobe=facts.nprobe_default,
            horizon_windows=self._settings.horizon_windows if work.needs_horizon else 0,
        )
        return work

    @threadpool_limits.wrap(limits=1, user_api="blas")  # type: ignore[untyped-decorator]
    def _prepare(self) -> None:
        if (work := self._worker.open(self._load_work)) is None:
            return
        while True:
            with self._lock:
                pending = self._await(self._may_prepare, lambda: self._scheduler.to_prepare)
                if pending is None:
                    return
                queries = [self._queries[query_id] for query_id in pending.query_ids]
            began_us = self._clock.now_us()
            prepared = work.prepare(pending.window, queries, self._out, self)
            with self._lock:
                self._prepared[pending.window.window_id] = prepared.only(self._queries.keys())
                now_us = self._clock.now_us()
                self._scheduler.prepared(pending, now_us, now_us - began_us)
                self._notify()

    # On the planning thread.

    def _plan(self) -> None:
        while True:
            with self._lock:
                if not self._await(self._may_plan, self._scheduler.can_leave):
                    return
                leaving = self._scheduler.leave()
                prepared = self._prepared[leaving.window.window_id]
            began_us = self._clock.now_us()
            self._work.plan(prepared, self._ahead, self._out, self)
            with self._lock:
                now_us = self._clock.now_us()
                left = self._scheduler.left(now_us, now_us - began_us)
                del self._prepared[left.window.window_id]
                for query_id in left.query_ids:
                    del self._queries[query_id]
                self._notify()

    def _ahead(self) -> list[PreparedWindow]:
        """The windows that leave next and are prepared."""
        with self._lock:
            return [self._prepared[pending.window.window_id] for pending in self._scheduler.ahead()]
