"""The grouper as a stage: offers gather into windows, one thread prepares them, another plans them,
groups come out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import structlog

from carpool.clock import Clock
from carpool.disk.settings import IndexSettings
from carpool.embedding import EmbeddingSettings
from carpool.errors import CarpoolError, ConfigError
from carpool.kafka.records import TopicPartition
from carpool.loop.priority.deficit_round_robin import DeficitRoundRobin
from carpool.loop.stage import Credit, Sink, Unit
from carpool.telemetry.metrics import Metrics
from grouper.admission import Admitted, admit
from grouper.build import load_work
from grouper.pending_windows import PendingWindow, PendingWindows
from grouper.plan.tenants import parse_weights
from grouper.plan.window import Wait, WindowPlanner
from grouper.records import expired
from grouper.settings import GrouperSettings
from grouper.work import PreparedWindow, WindowWork
from schemas.codec import tenant_of
from schemas.errors import RecordError
from schemas.query import Query
from schemas.topics import is_batch

log = structlog.get_logger()

CLOSE_S = 1.0
LEAD_US = 1_000
"""How much sooner a window closes than it takes to be ready for a commit."""
INTERACTIVE, BATCH = "interactive", "batch"
RANKS = {INTERACTIVE: 0, BATCH: 1}
OTHERS_LATELY_US = 1_000_000


class GrouperStage:
    """Implements `carpool.loop.stage.Stage[Query]`. What it holds is bounded by credit.

    Two threads: one loads index and model, then embeds and probes closed windows; the other groups
    them, in order, and hands them over. Until all is loaded credit is zero. A window closes when no
    other is about to leave, so what arrives meanwhile gathers; and a full one closes as soon as the
    first thread is free, up to `horizon_windows` ahead of the one that leaves. What is prepared
    when a window leaves is its horizon: nothing waits for it, and nothing is prepared twice. Where
    groups leave with a commit, a window closes just in time for the next: closed sooner it would
    hold fewer queries and leave no sooner.

    Each priority class has windows of its own. They take turns in being closed, by weight; one of a
    higher class leaves before those of lower ones that are closed already, and waits for nothing
    while some of these are in hand.

    Whichever thread ends a step closes the next window, unless offers have come since the last
    tick: then the tick that follows them decides, which knows how many more are on their way.
    """

    def __init__(
        self, *, settings: GrouperSettings, load: Callable[[], WindowWork], clock: Clock
    ) -> None:
        """`load` is called once, on the preparing thread: it may block, and raises `CarpoolError`
        when it cannot.
        """
        self._settings = settings
        self._load = load
        self._clock = clock
        self._sink: Sink | None = None
        self._threads = tuple(
            threading.Thread(target=self._guarded, args=(run,), name=f"grouper-{name}", daemon=True)
            for name, run in (("prepare", self._prepare), ("plan", self._plan))
        )
        self._lock = threading.Lock()
        self._may_prepare, self._may_plan = (
            threading.Condition(self._lock),
            threading.Condition(self._lock),
        )
        # All below is guarded by `_lock`.
        weights, ids = parse_weights(settings.tenant_weights), count()
        self._planners = {
            name: WindowPlanner(
                queries_min=settings.window_queries_min,
                queries_max=settings.window_queries_max,
                window_us_max=settings.window_ms_max * 1_000,
                weight_of=lambda tenant: weights.get(tenant, 1),
                window_ids=ids,
            )
            for name in RANKS
        }
        class_weights = {INTERACTIVE: settings.interactive_weight, BATCH: 1}
        self._turns = DeficitRoundRobin(
            quantum=settings.window_queries_max, weight_of=class_weights.__getitem__
        )
        for name in RANKS:
            self._turns.join(name)
        self._work: WindowWork | None = None
        self._gathered: dict[int, Admitted] = {}
        self._held = PendingWindows(overtaken_max=settings.interactive_weight)
        self._expires_us: int | None = None  # no deadline of what is in hand is before
        self._waiting = 0
        self._leaves_us = 0
        self._took_us = {"prepare": 0, "plan": 0}  # the last window
        self._offered_us = dict.fromkeys(RANKS, -OTHERS_LATELY_US)
        self._is_tick_due = False
        self._is_draining = False
        self._is_closed = False
        self._failure: str | None = None

    def start(self, sink: Sink) -> None:
        """Starts the threads, one of which loads index and model."""
        self._sink = sink
        for thread in self._threads:
            thread.start()

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Nothing: what is known of partitions lies with their units."""

    def credit(self) -> Credit:
        """Returns what fits beside the queries that gather and those in windows that have not
        left.
        """
        with self._lock:
            return self._credit()

    def offer(self, unit: Unit[Query], now_us: int) -> None:
        """Takes a query into the window, or refuses it where it does not fit the index. Raises
        before all is loaded.
        """
        if self._work is None:
            raise RuntimeError("offered a query before the index was loaded: credit was zero")
        try:
            admitted = admit(unit, self._work.facts)
        except RecordError as error:
            self._out.refuse(unit, error)
            return
        with self._lock:
            planner = self._planners[class_of(admitted)]
            planner.add(unit.id, unit.message.size_bytes, now_us, tenant_of(unit.message.headers))
            self._gathered[unit.id] = admitted
            self._offered_us[class_of(admitted)] = now_us
            self._expires_us = _earliest(self._expires_us, admitted.deadline_us)
            self._is_tick_due = True

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        """Closes a window when it is due and may be worked on, answers what has expired; returns
        when to be called next.
        """
        late = self._expire(now_us)
        for query in late:
            self._out.done(expired(query, now_us))
        if late and self._work is not None:
            self._work.count_expired(len(late))
        with self._lock:
            credit = self._credit()
            has_room = credit.records > 0 and credit.size_bytes > 0
            # Records that cannot be taken in are not waited for.
            self._waiting = waiting if has_room and not self._is_draining else 0
            self._leaves_us = 0 if self._is_draining else next_commit_at_us
            self._is_tick_due = False
            return _earliest(self._advance(now_us), self._expires_us)

    def revoke(self, unit_ids: frozenset[int]) -> None:
        """Forgets these queries, wherever they are; what was made of them already is discarded by
        the loop.
        """
        with self._lock:
            self._forget(unit_ids)

    def drain(self, until_us: int) -> None:
        """Waits for nothing more: the next tick closes what is there."""
        with self._lock:
            self._is_draining = True

    def not_ready(self) -> Sequence[str]:
        """Returns what is missing: index and model while they load, or what made them give up."""
        with self._lock:
            if self._failure is not None:
                return (self._failure,)
            return (
                ()
                if self._work is not None
                else ("the index's centroids and the embedding model are being loaded",)
            )

    def close(self) -> None:
        """Stops the threads, waiting for about a second: a model in the middle of a batch cannot be
        interrupted.
        """
        with self._lock:
            self._is_closed = True
            self._wake_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(CLOSE_S)

    def check_integrity(self) -> None:
        """Asserts that planner and stage hold the same queries."""
        with self._lock:
            for planner in self._planners.values():
                planner.check_integrity()
            self._held.check_integrity()
            assert sum(planner.queries for planner in self._planners.values()) == len(
                self._gathered
            )

    @property
    def _out(self) -> Sink:
        assert self._sink is not None, "start() comes first"
        return self._sink

    # With the lock held.

    def _credit(self) -> Credit:
        if self._work is None or self._failure is not None:
            return Credit(records=0, size_bytes=0)
        records = len(self._gathered) + self._held.queries
        size_bytes = (
            sum(planner.size_bytes for planner in self._planners.values()) + self._held.size_bytes
        )
        return Credit(
            records=max(0, self._settings.intake_queries_max - records),
            size_bytes=max(0, self._settings.intake_bytes_max - size_bytes),
        )

    def _advance(self, now_us: int) -> int | None:
        """Closes the window that is due, if there is one; returns when one will be."""
        waits = {name: self._wait(name, now_us) for name in RANKS}
        queries_max = self._settings.window_queries_max
        name = self._turns.next(
            lambda name: (
                min(self._planners[name].queries, queries_max) if waits[name] is None else None
            )
        )
        if name is None:
            return _earliest(*(wait.until_us for wait in waits.values() if wait is not None))
        window = self._planners[name].close(now_us)
        queries = {query_id: self._gathered.pop(query_id) for query_id in window.query_ids}
        size_bytes = sum(query.unit.message.size_bytes for query in queries.values())
        self._held.add(
            PendingWindow(window=window, rank=RANKS[name], queries=queries, size_bytes=size_bytes)
        )
        self._may_prepare.notify()
        return None

    def _wait(self, name: str, now_us: int) -> Wait | None:
        """How long to wait for the next window of a class; None: it is due."""
        ahead = self._held.count(RANKS[name])
        # While others are in hand or came lately, what waits is not known to be of this class.
        has_others = self._held.count(max(RANKS.values())) > ahead or any(
            now_us < self._offered_us[other] + OTHERS_LATELY_US
            for other in RANKS
            if RANKS[other] > RANKS[name]
        )
        return self._planners[name].wait(
            now_us,
            0 if has_others else self._waiting,
            busy=self._work is None
            or self._held.unprepared is not None
            or ahead > self._settings.horizon_windows,
            ahead=ahead > 0,
            due_us=self._leaves_us - sum(self._took_us.values()) - LEAD_US,
        )

    def _expire(self, now_us: int) -> list[Admitted]:
        """Takes out what has expired, less what is leaving: that is seen to within milliseconds."""
        with self._lock:
            if self._expires_us is None or now_us < self._expires_us:
                return []
            late = [query for query in self._expirable() if query.is_expired(now_us)]
            self._forget(frozenset(query.unit.id for query in late))
            self._expires_us = _earliest(*(query.deadline_us for query in self._expirable()))
            return late

    def _expirable(self) -> Iterator[Admitted]:
        yield from self._gathered.values()
        for held in self._held.remaining:
            yield from held.queries.values()

    def _forget(self, unit_ids: frozenset[int]) -> None:
        for planner in self._planners.values():
            planner.drop(unit_ids)
        for unit_id in unit_ids & self._gathered.keys():
            del self._gathered[unit_id]
        self._held.forget(unit_ids)

    def _step_ended(self, step: str, began_us: int) -> None:
        now_us = self._clock.now_us()
        self._took_us[step] = now_us - began_us
        if not self._is_tick_due:
            self._advance(now_us)
        if self._held.can_leave():
            self._may_plan.notify()

    def _wake_all(self) -> None:
        self._may_prepare.notify_all()
        self._may_plan.notify_all()

    def _await(self, turn: threading.Condition, ready: Callable[[], bool]) -> bool:
        """Waits until `ready`; False when the stage is closed or has failed."""
        while not (self._is_closed or self._failure is not None or ready()):
            turn.wait()
        return not self._is_closed and self._failure is None

    # On the preparing thread.

    def _prepare(self) -> None:
        work = self._load()
        with self._lock:
            self._work = work
        log.info(
            "ready",
            index_version=work.facts.index_version,
            nlist=work.facts.nlist,
            nprobe=work.facts.nprobe_default,
        )
        while True:
            with self._lock:
                if not self._await(self._may_prepare, lambda: self._held.unprepared is not None):
                    return
                held = self._held.unprepared
                assert held is not None, "that was waited for"
                queries = tuple(held.queries.values())
            began_us = self._clock.now_us()
            prepared = work.prepare(held.window, queries, self._out, self)
            with self._lock:
                held.prepared = prepared.only(held.queries.keys())
                self._step_ended("prepare", began_us)

    # On the planning thread.

    def _plan(self) -> None:
        while True:
            with self._lock:
                if not self._await(self._may_plan, self._held.can_leave):
                    return
                work, leaving = self._work, self._held.leave()
            began_us = self._clock.now_us()
            assert work is not None, "nothing is prepared without it"
            work.plan(leaving, self._ahead, self._out, self)
            with self._lock:
                self._held.left()
                self._step_ended("plan", began_us)

    def _ahead(self) -> list[PreparedWindow]:
        """The windows that leave after the first, as far as they are prepared."""
        with self._lock:
            return [held.prepared for held in self._held.remaining if held.prepared is not None]

    # On either.

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except CarpoolError as error:
            self._give_up(error)
        except Exception as error:
            log.exception("a thread of the grouper failed")
            self._give_up(
                CarpoolError(
                    f"planning a window failed with {type(error).__name__}: {error}. This is a "
                    "defect of Carpool; nothing is lost, the queries are planned again after a "
                    "restart. Please report it with the log"
                )
            )

    def has(self, unit_id: int) -> bool:
        """See `grouper.work.InHand`."""
        with self._lock:
            return self._held.has(unit_id)

    def take_out(self, unit_id: int) -> bool:
        """See `grouper.work.InHand`."""
        with self._lock:
            is_here = self._held.has(unit_id)
            self._held.forget(frozenset({unit_id}))
            return is_here

    def _give_up(self, error: CarpoolError) -> None:
        with self._lock:
            self._failure = str(error)
            self._wake_all()
        self._out.fail(error)


def class_of(query: Admitted) -> str:
    """Returns the priority class of a query: that of the topic that it was published to."""
    return BATCH if is_batch(query.unit.source.topic) else INTERACTIVE


def _earliest(*times_us: int | None) -> int | None:
    return min((time_us for time_us in times_us if time_us is not None), default=None)


def build_stage(
    settings: GrouperSettings,
    index: IndexSettings,
    embedding: EmbeddingSettings,
    metrics: Metrics,
    clock: Clock,
) -> GrouperStage:
    """Returns the grouper's stage; index and model are loaded by its worker. Raises `ConfigError`
    for settings that clash.
    """
    if problems := settings.check():
        raise ConfigError("the settings of the grouper do not fit: " + "; ".join(problems))

    def load() -> WindowWork:
        return load_work(settings, index, embedding, metrics, clock)

    return GrouperStage(settings=settings, load=load, clock=clock)
