"""The searcher as a stage: takes groups, searches them on a thread of its own, hands over one result a query.

The polling thread only moves units in and out of a queue. The search thread opens the index, then searches group by
group; each query leaves as soon as it is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import structlog
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from carpool.clock import Clock
from carpool.disk.settings import IndexSettings
from carpool.errors import CarpoolError, DeploymentError
from carpool.kafka.stage import Credit, Done, Sink, Unit
from carpool.telemetry.metrics import Metrics
from schemas.group import Group
from schemas.record import ClusterId
from searcher.events import EventLog, NoEvents
from searcher.execution import Found, Search
from searcher.opening import Opened, OpenReader, open_searcher
from searcher.plan.upcoming import next_query
from searcher.results import Outcome, expire, finish
from searcher.scoring import Scorer, score_cluster
from searcher.settings import SearcherSettings

_log = structlog.get_logger(__name__)


def parts(group: Group) -> int:
    """Returns what a group owes: one result a query; part i is the query at position i."""
    return len(group.queries)


def build_stage(
    settings: SearcherSettings,
    index: IndexSettings,
    metrics: Metrics,
    clock: Clock,
    *,
    events: EventLog | None = None,
    scorer: Scorer = score_cluster,
    open_reader: OpenReader | None = None,
) -> SearcherStage:
    """Returns the searcher's stage. The index is opened after `start`, on the search thread; what is wrong with it
    reaches `Sink.fail`. The last three are seams for tests and benchmarks.
    """
    listener = events or NoEvents()

    def open_parts() -> Opened:
        return open_searcher(settings, index, metrics, clock, events=listener, scorer=scorer, open_reader=open_reader)

    return SearcherStage(settings, open_parts, metrics, clock)


class SearcherStage:
    """Implements `Stage[Group]`. See `carpool.kafka.stage` for what each method promises."""

    def __init__(
        self, settings: SearcherSettings, open_parts: Callable[[], Opened], metrics: Metrics, clock: Clock
    ) -> None:
        self._settings = settings
        self._open_parts = open_parts
        self._metrics = metrics
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Unit[Group]] = deque()
        self._current: Unit[Group] | None = None
        self._is_current_revoked = False
        self._opened: Opened | None = None
        self._missing = "the index is being opened"
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._sink: Sink | None = None

    # ---- the polling thread

    def start(self, sink: Sink) -> None:
        """Starts the search thread, which opens the index."""
        self._sink = sink
        self._thread = threading.Thread(target=self._run, args=(sink,), name="search", daemon=True)
        self._thread.start()

    def credit(self) -> Credit:
        """Returns room for groups; none until the index is open."""
        with self._changed:
            if self._missing:
                return Credit(records=0, size_bytes=0)
            held = [*self._waiting] + ([self._current] if self._current else [])
            held_bytes = sum(unit.message.size_bytes for unit in held)
            return Credit(
                records=max(0, self._settings.groups_in_hand_max - len(held)),
                size_bytes=max(0, self._settings.intake_bytes_max - held_bytes),
            )

    def offer(self, unit: Unit[Group], now_us: int) -> None:
        """Takes a group."""
        with self._changed:
            self._waiting.append(unit)
            self._changed.notify_all()
            if len(self._waiting) == 1:
                self._tell_next()

    def tick(self, now_us: int, waiting: int) -> int | None:
        """Has nothing to close and nothing to expire: deadlines are looked at when a query's turn comes."""
        return None

    def revoke(self, unit_ids: frozenset[int]) -> None:
        """Forgets groups; the one being searched ends after the query that it is at, whose result is not handed over."""
        with self._changed:
            self._waiting = deque(unit for unit in self._waiting if unit.id not in unit_ids)
            if self._current is not None and self._current.id in unit_ids:
                self._is_current_revoked = True
            self._tell_next()

    def drain(self, until_us: int) -> None:
        """Needs nothing: what is in hand is searched anyway, and nothing waits for more to come."""

    def not_ready(self) -> Sequence[str]:
        """Returns what keeps the searcher from working."""
        with self._changed:
            return (self._missing,) if self._missing else ()

    def close(self) -> None:
        """Ends the threads and closes the index; a query in hand is dropped. Blocks for up to a second."""
        with self._changed:
            self._is_closing = True
            self._missing = "the searcher is closing"
            self._changed.notify_all()
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.cache.stop()
        if self._thread is not None:
            self._thread.join(timeout=0.5)
        if opened is not None and not (self._thread and self._thread.is_alive()):
            opened.close()

    def check_integrity(self) -> None:
        """Raises `AssertionError` where the books of the cache are wrong; for tests and idle moments."""
        with self._changed:
            if self._opened is not None:
                self._opened.cache.check_integrity()

    # ---- what comes next

    def _next_query(self) -> tuple[ClusterId, ...]:
        with self._changed:
            head = self._waiting[0] if self._waiting else None
            in_hand = next((head.record.queries[part].clusters for part in _owed(head)), None) if head else None
            current = self._current.record.next if self._current is not None else None
            return next_query(in_hand, current.clusters if current is not None else ())

    def _tell_next(self) -> None:
        # Without a current group the next one begins at once: to read ahead for it would only be late.
        if self._opened is not None and self._current is not None:
            self._opened.cache.next_changed(self._next_query())

    # ---- the search thread

    def _run(self, sink: Sink) -> None:
        try:
            # One BLAS thread: a second one spins when a reader thread needs its core.
            with threadpool_limits(limits=1, user_api="blas"):
                opened = self._open()
                while opened is not None and (unit := self._take()) is not None:
                    self._search(unit, opened, sink)
        except CarpoolError as error:
            self._fail(error, sink)
        except Exception as error:
            _log.exception("search broke")
            self._fail(
                CarpoolError(f"the search thread broke: {error!r}; this is a fault of Carpool, please report it"), sink
            )

    def _fail(self, error: CarpoolError, sink: Sink) -> None:
        with self._changed:
            self._missing = str(error)
        sink.fail(error)

    def _open(self) -> Opened | None:
        opened = self._open_parts()
        with self._changed:
            if not self._is_closing:
                self._opened, self._missing = opened, ""
                return opened
        opened.close()
        return None

    def _take(self) -> Unit[Group] | None:
        with self._changed:
            self._current, self._is_current_revoked = None, False
            while not self._waiting and not self._is_closing:
                self._changed.wait()
            if self._is_closing:
                return None
            self._current = self._waiting.popleft()
            return self._current

    def _search(self, unit: Unit[Group], opened: Opened, sink: Sink) -> None:
        group = unit.record
        self._check_fits(group, opened)
        searches = tuple(
            Search(
                part=part,
                vector=np.frombuffer(group.queries[part].vector, dtype="<f4"),
                clusters=tuple(dict.fromkeys(group.queries[part].clusters)),
                top_k=group.queries[part].query.top_k or self._settings.top_k_default,
            )
            for part in _owed(unit)
        )
        opened.executor.run(
            searches,
            next_query=self._next_query,
            is_wanted=lambda search: self._is_wanted(unit, search.part, sink),
            finish=lambda search, found: self._finish(unit, search.part, found, opened, sink),
        )

    def _check_fits(self, group: Group, opened: Opened) -> None:
        """Raises `DeploymentError` where the group was planned on another index: its cluster ids would mean nothing."""
        manifest = opened.manifest
        for what, theirs, ours in (
            ("centroids", group.centroids_fingerprint, manifest.centroids_fingerprint),
            ("index version", group.index_version, manifest.index_version),
            ("embedding model", group.embedding_model, manifest.embedding_model),
        ):
            if theirs != ours:
                raise DeploymentError(
                    f"a group was planned with {what} {theirs}, and this searcher has {ours}: its cluster ids mean nothing "
                    "here. Give grouper and searcher the same index ([index] dir) and restart the one that is behind; nothing "
                    "is lost"
                )
        for grouped in group.queries:
            if len(grouped.vector) != manifest.dimension * 4:
                raise DeploymentError(
                    f"the vector of query {grouped.query.query_id} has {len(grouped.vector)} bytes; {manifest.dimension} float32 "
                    f"values have {manifest.dimension * 4}. The grouper is not of this version; deploy matching ones"
                )
            if not all(0 <= cluster < manifest.nlist for cluster in grouped.clusters):
                raise DeploymentError(
                    f"query {grouped.query.query_id} probes a cluster that is not among the {manifest.nlist} of this index. The "
                    "grouper is not of this version; deploy matching ones"
                )

    def _is_wanted(self, unit: Unit[Group], part: int, sink: Sink) -> bool:
        """Whether a result is still of use; what has expired is answered so here."""
        with self._changed:
            if self._is_closing or self._is_current_revoked:
                return False
        grouped = unit.record.queries[part]
        now_us = self._clock.now_us()
        if grouped.deadline_us is None or now_us < grouped.deadline_us:
            return True
        self._hand_over(unit, part, expire(grouped, now_us), sink)
        return False

    def _finish(self, unit: Unit[Group], part: int, found: Found, opened: Opened, sink: Sink) -> None:
        published_us = _published_us(unit)
        outcome = finish(unit.record, part, found, opened.documents, published_us=published_us, clock=self._clock)
        self._hand_over(unit, part, outcome, sink)

    def _hand_over(self, unit: Unit[Group], part: int, outcome: Outcome, sink: Sink) -> None:
        with self._changed:
            if self._is_current_revoked:
                return
        if outcome.answered is not None:
            self._metrics.answers.labels(stage="searcher", status=outcome.answered).inc()
        else:
            for stage in ("queue_search", "load", "search", "passages"):
                self._metrics.stage_seconds.labels(stage=stage).observe(outcome.timings_us[stage] / 1_000_000)
        sink.done(Done(parts=((unit.id, part),), outputs=(outcome.output,)))


def _owed(unit: Unit[Group]) -> tuple[int, ...]:
    """The parts that no earlier life has committed, in the order of the group."""
    return tuple(part for part in range(unit.parts) if part not in unit.parts_done)


def _published_us(unit: Unit[Group]) -> int:
    """When the grouper wrote the group, by the broker's timestamp; when it came here, where that is unset."""
    return unit.source.timestamp_ms * 1_000 or unit.message.received_us
