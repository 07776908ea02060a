"""The grouper as a stage: offers gather into windows, one thread prepares them, another plans them, groups come out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from carpool.clock import Clock
from carpool.disk.settings import IndexSettings
from carpool.embedding import EmbeddingSettings
from carpool.errors import CarpoolError, ConfigError
from carpool.kafka.stage import Credit, Sink, Unit
from carpool.telemetry.metrics import Metrics
from grouper.admission import Admitted, admit
from grouper.load import load_work
from grouper.plan.window import Window, WindowPlanner
from grouper.settings import GrouperSettings
from grouper.work import PreparedWindow, WindowWork
from schemas.errors import RecordError
from schemas.query import Query

log = structlog.get_logger()

CLOSE_S = 1.0


@dataclass(kw_only=True, slots=True, eq=False)
class _Held:
    """A closed window that has not left: its queries less those revoked, its bytes, and what was made of it."""

    window: Window
    queries: dict[int, Admitted]
    size_bytes: int
    prepared: PreparedWindow | None = None

    def forget(self, unit_ids: frozenset[int]) -> None:
        """Drops these queries, here and in what was made of the window."""
        for unit_id in unit_ids & self.queries.keys():
            del self.queries[unit_id]
        if self.prepared is not None:
            self.prepared = self.prepared.only(self.queries.keys())


class GrouperStage:
    """Implements `carpool.kafka.stage.Stage[Query]`. What it holds is bounded by credit.

    Two threads: one loads index and model, then embeds and probes closed windows; the other groups them, in order, and
    hands them over. Until all is loaded credit is zero. A window closes when no other is about to leave, so what arrives
    meanwhile gathers; and a full one closes as soon as the first thread is free, up to `horizon_windows` ahead of the one
    that leaves. What is prepared when a window leaves is its horizon: nothing waits for it, and nothing is prepared twice.

    Whichever thread ends a step closes the next window, unless offers have come since the last tick: then the tick that
    follows them decides, which knows how many more are on their way.
    """

    def __init__(self, *, settings: GrouperSettings, load: Callable[[], WindowWork], clock: Clock) -> None:
        """`load` is called once, on the preparing thread: it may block, and raises `CarpoolError` when it cannot."""
        self._settings = settings
        self._load = load
        self._clock = clock
        self._sink: Sink | None = None
        self._threads = tuple(
            threading.Thread(target=self._guarded, args=(run,), name=f"grouper-{name}", daemon=True)
            for name, run in (("prepare", self._prepare), ("plan", self._plan))
        )
        self._changed = threading.Condition()
        # All below is guarded by `_changed`.
        self._planner = WindowPlanner(
            queries_min=settings.window_queries_min,
            queries_max=settings.window_queries_max,
            window_us_max=settings.window_ms_max * 1_000,
        )
        self._work: WindowWork | None = None
        self._gathered: dict[int, Admitted] = {}
        self._held: deque[_Held] = deque()  # in the order in which they leave; only the last may be unprepared
        self._waiting = 0
        self._is_tick_due = False
        self._is_draining = False
        self._is_closed = False
        self._failure: str | None = None

    def start(self, sink: Sink) -> None:
        """Starts the threads, one of which loads index and model."""
        self._sink = sink
        for thread in self._threads:
            thread.start()

    def credit(self) -> Credit:
        """Returns what fits beside the queries that gather and those in windows that have not left."""
        with self._changed:
            return self._credit()

    def offer(self, unit: Unit[Query], now_us: int) -> None:
        """Takes a query into the window, or refuses it where it does not fit the index. Raises before all is loaded."""
        if self._work is None:
            raise RuntimeError("offered a query before the index was loaded: credit was zero")
        try:
            admitted = admit(unit, self._work.facts)
        except RecordError as error:
            self._out.refuse(unit, error)
            return
        with self._changed:
            self._planner.add(unit.id, unit.message.size_bytes, now_us)
            self._gathered[unit.id] = admitted
            self._is_tick_due = True

    def tick(self, now_us: int, waiting: int) -> int | None:
        """Closes a window when it is due and may be worked on; returns when it will be due."""
        with self._changed:
            credit = self._credit()
            has_room = credit.records > 0 and credit.size_bytes > 0
            # Records that cannot be taken in are not waited for.
            self._waiting = waiting if has_room and not self._is_draining else 0
            self._is_tick_due = False
            return self._advance(now_us)

    def revoke(self, unit_ids: frozenset[int]) -> None:
        """Forgets these queries, wherever they are; what was made of them already is discarded by the loop."""
        with self._changed:
            self._planner.drop(unit_ids)
            for unit_id in unit_ids & self._gathered.keys():
                del self._gathered[unit_id]
            for held in self._held:
                held.forget(unit_ids)

    def drain(self, until_us: int) -> None:
        """Waits for nothing more: the next tick closes what is there."""
        with self._changed:
            self._is_draining = True

    def not_ready(self) -> Sequence[str]:
        """Returns what is missing: index and model while they load, or what made them give up."""
        with self._changed:
            if self._failure is not None:
                return (self._failure,)
            return () if self._work is not None else ("the index's centroids and the embedding model are being loaded",)

    def close(self) -> None:
        """Stops the threads, waiting for about a second: a model in the middle of a batch cannot be interrupted."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(CLOSE_S)

    def check_integrity(self) -> None:
        """Asserts that planner and stage hold the same queries."""
        with self._changed:
            self._planner.check_integrity()
            assert self._planner.queries == len(self._gathered)
            assert len(self._held) <= self._settings.horizon_windows + 1
            assert all(held.prepared is not None for held in list(self._held)[:-1])
            assert [held.window.window_id for held in self._held] == sorted(
                held.window.window_id for held in self._held
            )

    @property
    def _out(self) -> Sink:
        assert self._sink is not None, "start() comes first"
        return self._sink

    # With the lock held.

    def _credit(self) -> Credit:
        if self._work is None or self._failure is not None:
            return Credit(records=0, size_bytes=0)
        records = self._planner.queries + sum(len(held.queries) for held in self._held)
        size_bytes = self._planner.size_bytes + sum(held.size_bytes for held in self._held)
        return Credit(
            records=max(0, self._settings.intake_queries_max - records),
            size_bytes=max(0, self._settings.intake_bytes_max - size_bytes),
        )

    def _advance(self, now_us: int) -> int | None:
        is_preparing = bool(self._held) and self._held[-1].prepared is None
        is_far_ahead = len(self._held) > self._settings.horizon_windows
        decision = self._planner.step(
            now_us,
            self._waiting,
            busy=self._work is None or is_preparing or is_far_ahead,
            ahead=bool(self._held),
        )
        if not isinstance(decision, Window):
            return decision.until_us
        queries = {query_id: self._gathered.pop(query_id) for query_id in decision.query_ids}
        size_bytes = sum(query.unit.message.size_bytes for query in queries.values())
        self._held.append(_Held(window=decision, queries=queries, size_bytes=size_bytes))
        self._changed.notify_all()
        return None

    def _step_ended(self) -> None:
        if not self._is_tick_due:
            self._advance(self._clock.now_us())
        self._changed.notify_all()

    def _await(self, ready: Callable[[], bool]) -> bool:
        """Waits until `ready`; False when the stage is closed or has failed."""
        while not (self._is_closed or self._failure is not None or ready()):
            self._changed.wait()
        return not self._is_closed and self._failure is None

    # On the preparing thread.

    def _prepare(self) -> None:
        work = self._load()
        with self._changed:
            self._work = work
        log.info(
            "ready", index_version=work.facts.index_version, nlist=work.facts.nlist, nprobe=work.facts.nprobe_default
        )
        while True:
            with self._changed:
                if not self._await(lambda: bool(self._held) and self._held[-1].prepared is None):
                    return
                held = self._held[-1]
                queries = tuple(held.queries.values())
            prepared = work.prepare(held.window, queries, self._out, self._is_live)
            with self._changed:
                held.prepared = prepared.only(held.queries.keys())
                self._step_ended()

    # On the planning thread.

    def _plan(self) -> None:
        while True:
            with self._changed:
                if not self._await(lambda: bool(self._held) and self._held[0].prepared is not None):
                    return
                work, leaving = self._work, self._held[0].prepared
            assert work is not None and leaving is not None, "that was waited for"
            work.plan(leaving, self._ahead, self._out, self._is_live)
            with self._changed:
                self._held.popleft()
                self._step_ended()

    def _ahead(self) -> list[PreparedWindow]:
        """The windows that leave after the first, as far as they are prepared."""
        with self._changed:
            return [held.prepared for held in list(self._held)[1:] if held.prepared is not None]

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
                    f"planning a window failed with {type(error).__name__}: {error}. This is a defect of Carpool; nothing is "
                    "lost, the queries are planned again after a restart. Please report it with the log"
                )
            )

    def _is_live(self, unit_id: int) -> bool:
        with self._changed:
            return any(unit_id in held.queries for held in self._held)

    def _give_up(self, error: CarpoolError) -> None:
        with self._changed:
            self._failure = str(error)
            self._changed.notify_all()
        self._out.fail(error)


def build_stage(
    settings: GrouperSettings, index: IndexSettings, embedding: EmbeddingSettings, metrics: Metrics, clock: Clock
) -> GrouperStage:
    """Returns the grouper's stage; index and model are loaded by its worker. Raises `ConfigError` for settings that clash."""
    if problems := settings.check():
        raise ConfigError("the settings of the grouper do not fit: " + "; ".join(problems))

    def load() -> WindowWork:
        return load_work(settings, index, embedding, metrics, clock)

    return GrouperStage(settings=settings, load=load, clock=clock)
