"""The grouper as a stage: offers gather into a window, one worker takes it away, groups come out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

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
from grouper.work import WindowWork
from schemas.errors import RecordError
from schemas.query import Query

log = structlog.get_logger()

CLOSE_S = 1.0


class GrouperStage:
    """Implements `carpool.kafka.stage.Stage[Query]`. What it holds is bounded by credit; one thread does the work.

    The worker loads index and model first; until then credit is zero. A window is handed over only to a free worker, so
    what arrives meanwhile gathers. The worker decides for itself when it becomes free, unless offers have come since the
    last tick: then the tick that follows them decides, which knows how many more are on their way.
    """

    def __init__(self, *, settings: GrouperSettings, load: Callable[[], WindowWork], clock: Clock) -> None:
        """`load` is called once, on the worker thread: it may block, and raises `CarpoolError` when it cannot."""
        self._settings = settings
        self._load = load
        self._clock = clock
        self._sink: Sink | None = None
        self._worker = threading.Thread(target=self._run, name="grouper-worker", daemon=True)
        self._changed = threading.Condition()
        # All below is guarded by `_changed`.
        self._planner = WindowPlanner(
            queries_min=settings.window_queries_min,
            queries_max=settings.window_queries_max,
            window_us_max=settings.window_ms_max * 1_000,
        )
        self._work: WindowWork | None = None
        self._gathered: dict[int, Admitted] = {}
        self._in_hand: dict[int, Admitted] = {}
        self._in_hand_bytes = 0
        self._handed: Window | None = None
        self._is_busy = False
        self._waiting = 0
        self._is_tick_due = False
        self._is_draining = False
        self._is_closed = False
        self._failure: str | None = None

    def start(self, sink: Sink) -> None:
        """Starts the worker, which loads index and model."""
        self._sink = sink
        self._worker.start()

    def credit(self) -> Credit:
        """Returns what fits beside the queries in the window and in the worker's hand."""
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
        """Hands a window to the worker when it is free and the window is due; returns when it will be due."""
        with self._changed:
            credit = self._credit()
            has_room = credit.records > 0 and credit.size_bytes > 0
            # Records that cannot be taken in are not waited for.
            self._waiting = waiting if has_room and not self._is_draining else 0
            self._is_tick_due = False
            return self._advance(now_us)

    def revoke(self, unit_ids: frozenset[int]) -> None:
        """Forgets these queries, wherever they are; what the worker made of them already is discarded by the loop."""
        with self._changed:
            self._planner.drop(unit_ids)
            for unit_id in unit_ids:
                self._gathered.pop(unit_id, None)
                self._in_hand.pop(unit_id, None)

    def drain(self, until_us: int) -> None:
        """Waits for nothing more: the next tick closes what is there."""
        with self._changed:
            self._is_draining = True

    def not_ready(self) -> Sequence[str]:
        """Returns what is missing: index and model while they load, or what made the worker give up."""
        with self._changed:
            if self._failure is not None:
                return (self._failure,)
            return () if self._work is not None else ("the index's centroids and the embedding model are being loaded",)

    def close(self) -> None:
        """Stops the worker, waiting for at most a second: a model in the middle of a batch cannot be interrupted."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._worker.is_alive():
            self._worker.join(CLOSE_S)

    def check_integrity(self) -> None:
        """Asserts that planner and stage hold the same queries."""
        with self._changed:
            self._planner.check_integrity()
            assert self._planner.queries == len(self._gathered)
            assert self._is_busy or not self._in_hand

    @property
    def _out(self) -> Sink:
        assert self._sink is not None, "start() comes first"
        return self._sink

    # With the lock held.

    def _credit(self) -> Credit:
        if self._work is None or self._failure is not None:
            return Credit(records=0, size_bytes=0)
        return Credit(
            records=max(0, self._settings.intake_queries_max - self._planner.queries - len(self._in_hand)),
            size_bytes=max(0, self._settings.intake_bytes_max - self._planner.size_bytes - self._in_hand_bytes),
        )

    def _advance(self, now_us: int) -> int | None:
        decision = self._planner.step(now_us, self._waiting, self._is_busy or self._work is None)
        if not isinstance(decision, Window):
            return decision.until_us
        self._in_hand = {query_id: self._gathered.pop(query_id) for query_id in decision.query_ids}
        self._in_hand_bytes = sum(query.unit.message.size_bytes for query in self._in_hand.values())
        self._handed = decision
        self._is_busy = True
        self._changed.notify_all()
        return None

    # On the worker thread.

    def _run(self) -> None:
        try:
            work = self._load()
            with self._changed:
                self._work = work
            log.info(
                "ready",
                index_version=work.facts.index_version,
                nlist=work.facts.nlist,
                nprobe=work.facts.nprobe_default,
            )
            while (taken := self._take()) is not None:
                window, queries = taken
                work.run(window, queries, self._out, self._is_live)
                self._finish()
        except CarpoolError as error:
            self._give_up(error)
        except Exception as error:
            log.exception("the worker of the grouper failed")
            self._give_up(
                CarpoolError(
                    f"planning a window failed with {type(error).__name__}: {error}. This is a defect of Carpool; nothing is "
                    "lost, the queries are planned again after a restart. Please report it with the log"
                )
            )

    def _take(self) -> tuple[Window, tuple[Admitted, ...]] | None:
        """The next window and its live queries; waits for one. None: the stage is closed."""
        with self._changed:
            while self._handed is None and not self._is_closed:
                self._changed.wait()
            window, self._handed = self._handed, None
            if window is None or self._is_closed:
                return None
            return window, tuple(self._in_hand.values())

    def _finish(self) -> None:
        with self._changed:
            self._in_hand = {}
            self._in_hand_bytes = 0
            self._is_busy = False
            if not self._is_tick_due:
                self._advance(self._clock.now_us())

    def _is_live(self, unit_id: int) -> bool:
        with self._changed:
            return unit_id in self._in_hand

    def _give_up(self, error: CarpoolError) -> None:
        with self._changed:
            self._failure = str(error)
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
