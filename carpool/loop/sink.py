"""The sink of a stage: retries failed queries, rejects bad ones, and submits finished work."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.records import Output
from carpool.loop.alone import AloneUnits
from carpool.loop.defects import DiedError, failed_part
from carpool.loop.delivery.delivery import Delivery
from carpool.loop.in_flight import InFlight
from carpool.loop.member_health import MemberHealth
from carpool.loop.reject import reject_outputs
from carpool.loop.retry import FailureLimits, as_record_error, decide_retry
from carpool.loop.stage import Done, QueryFailure, Unit
from carpool.loop.work_observer import WorkObserver
from carpool.telemetry.logs import about
from carpool.telemetry.metrics import Metrics
from schemas.answer import Stage as StageName
from schemas.errors import REASONS, RecordError
from schemas.query import Query
from schemas.topics import ANSWERS, BATCH, RETRIEVALS, RETRY_TOPICS

log = structlog.get_logger()


class LoopSink:
    """Implements `carpool.loop.stage.Sink`. Thread-safe."""

    delivery: Delivery
    """Where work goes; set by the loop before the first call."""

    def __init__(
        self,
        *,
        stage_name: StageName,
        group: str,
        limits: FailureLimits,
        in_flight: InFlight,
        observer: WorkObserver,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.stage_name: StageName = stage_name
        self._group = group
        self._limits = limits
        self._in_flight = in_flight
        self._observer = observer
        self._clock = clock
        self._metrics = metrics
        metrics.loop.answers.labels(stage=stage_name, status="failed")  # an alert sees its rise
        self._lock = threading.Lock()
        self._health = MemberHealth(limits.in_a_row_max)
        self.alone = AloneUnits(in_flight, clock.now_us(), self._end)
        self.failure: CarpoolError | None = None

    def done(self, done: Done) -> bool:
        """Submits finished work. Retries or ends a failed query."""
        if self._is_for_another_member(done):  # it stays unacknowledged
            return True
        try:
            self._submit(done)
        except Exception as error:
            self.charge(done.parts, error)
            return False
        return True

    def charge(self, parts: Sequence[tuple[int, int]], error: Exception) -> None:
        owed = self._in_flight.unfinished(parts)
        if not owed:
            return
        what = f"{type(error).__name__}: {error}"[:500]
        log.error(
            "queries could not be handled: a defect of Carpool",
            exc_info=error,
            queries=len(owed),
            **about(owed[0][0].source, owed[0][0].message.headers),
        )
        with self._lock:
            is_on_trial = self._health.is_on_trial  # with one record: it is the cause
            if self._health.failed(what) and not is_on_trial:
                return
        now_us = self._clock.now_us()
        for unit, part in owed:
            if unit.record is None:  # it could not be decoded, and is rejected
                outputs = self._rejected(unit, as_record_error(error, unit.message))
                self._submit(Done(parts=((unit.id, part),), outputs=outputs))
            else:
                self._submit(failed_part(unit, part, error, stage=self.stage_name, now_us=now_us))

    def _end(self, unit: Unit[Any]) -> None:
        """Ends the queries of a record that has killed this service."""
        self._observer.accepted(unit)
        now_us = self._clock.now_us()
        for _, part in unit.owed:
            self._submit(failed_part(unit, part, DiedError(), stage=self.stage_name, now_us=now_us))

    def _submit(self, done: Done) -> None:
        resolved = done if done.failure is None else self._resolved(done, done.failure)
        if self.stage_name != "generator":
            resolved = self._through_the_generator(resolved)
        observed = self._observer.finished(resolved)
        if self._in_flight.finish(resolved):
            self.delivery.submit(observed)

    def _is_for_another_member(self, done: Done) -> bool:
        """Counts failures; returns whether this member is too sick to end the query.

        Does not count rejected records: their sender caused them, not this member.
        """
        with self._lock:
            if done.failure is not None and done.failure.is_refusal:
                return False
            if done.failure is not None:
                return self._health.failed(done.failure.message[:500])
            # Before the generator, an answer means an expired or rejected query, and a query may be
            # planned again.
            no_success = () if self.stage_name == "generator" else (ANSWERS.name, *RETRY_TOPICS)
            if any(output.topic not in no_success for output in done.outputs):
                self._health.succeeded()
            return False

    def _resolved(self, done: Done, failure: QueryFailure) -> Done:
        """Replaces the `failed` answer by a retry record, or adds a dead letter."""
        outcome, outputs = decide_retry(
            failure,
            limits=self._limits,
            group=self._group,
            stage=self.stage_name,
            now_us=self._clock.now_us(),
        )
        metrics = self._metrics.loop
        metrics.query_failures.labels(stage=self.stage_name, outcome=outcome).inc()
        if outcome == "again":
            return replace(done, outputs=outputs, failure=None)
        refused = failure.error_type if failure.error_type in REASONS else "processing_failed"
        metrics.dead_letters.labels(reason=refused).inc()
        metrics.answers.labels(stage=self.stage_name, status="failed").inc()
        return replace(done, outputs=done.outputs + outputs, failure=None)

    def _through_the_generator(self, done: Done) -> Done:
        """Sends answers to the generator, which writes those of records that have none yet."""
        topic = BATCH[RETRIEVALS.name] if self._in_flight.is_batch(done) else RETRIEVALS
        outputs = (
            replace(output, topic=topic.name) if output.topic == ANSWERS.name else output
            for output in done.outputs
        )
        return replace(done, outputs=tuple(outputs))

    def next_step(self, now_us: int) -> Literal["leave", "join"] | None:
        """Returns whether the member leaves or joins its consumer group now."""
        with self._lock:
            step = self._health.next_step(now_us, is_written=not self.delivery.backlog)
        if step == "leave":
            log.error("this member leaves its consumer group", reason=self._health.reason)
        elif step == "join":
            log.info("this member joins its consumer group again, with one record")
        return step

    @property
    def is_away(self) -> bool:
        """Whether this member has left its consumer group."""
        return self._health.is_away

    def records_max(self, in_flight: int) -> int | None:
        """Returns how many records may be taken besides those in flight; None: without a limit.

        One at a time while a sick member is on trial, none before it leaves or beside a suspect.
        """
        if self._health.is_leaving or self.alone:
            return 0
        return max(0, 1 - in_flight) if self._health.is_on_trial else None

    @property
    def not_ready(self) -> str | None:
        """Why this member is sick, in words."""
        return self._health.reason

    def hint(self, output: Output) -> None:
        self.delivery.hint(output)

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        self._metrics.loop.dead_letters.labels(reason=error.reason).inc()
        self.done(Done(parts=unit.owed, outputs=self._rejected(unit, error)))

    def _rejected(self, unit: Unit[Any], error: RecordError) -> tuple[Output, ...]:
        return reject_outputs(
            unit.message,
            error,
            group=self._group,
            stage=self.stage_name,
            now_us=self._clock.now_us(),
            query=unit.record if isinstance(unit.record, Query) else None,
        )

    def leave_group(self, reason: str) -> None:
        with self._lock:
            self._health.leave(reason)

    def fail(self, error: CarpoolError) -> None:
        """Reports the first failure only."""
        if self.failure is None:
            self.failure = error
            log.error("cannot go on", error=str(error), kind=type(error).__name__)
