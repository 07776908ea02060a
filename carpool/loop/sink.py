"""The sink of a stage: submits finished work, and ends or retries what failed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import structlog

from carpool.errors import DeploymentError
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.alone import AloneUnits
from carpool.loop.delivery.delivery import Delivery, LoopParts
from carpool.loop.ends import DiedError, Ends
from carpool.loop.in_order import InOrder
from carpool.loop.member_health import MemberHealth
from carpool.loop.priority.intake_queues import Intake
from carpool.loop.retry import FailureLimits, decide_retry
from carpool.loop.stage import Done, Failure, Unit
from carpool.telemetry.logs import about
from schemas.errors import REASONS, RecordError

log = structlog.get_logger()


class LoopSink:
    """Implements `carpool.loop.stage.Sink`. Thread-safe."""

    delivery: Delivery
    """Where work goes; set by the loop before the first call."""

    def __init__(
        self,
        stage_name: str,
        group: str,
        intake: Intake[Any],
        limits: FailureLimits,
        parts: LoopParts,
    ) -> None:
        """`group`: the consumer group."""
        self._stage_name = stage_name
        self._group = group
        self._ends = intake.ends or Ends(stage_name)
        self._limits = limits
        self._parts = parts
        self._in_flight = parts.in_flight
        self._observer = parts.observer
        self._clock = parts.clock
        self._metrics = parts.metrics.loop
        self._metrics.ended.labels(stage=stage_name, status="failed")  # an alert sees its rise
        self._lock = threading.Lock()
        self.health = MemberHealth(limits.in_a_row_max)
        self._attempts: dict[tuple[int, int], int] = {}  # of parts that are tried again in place
        self.alone = AloneUnits(parts.in_flight, parts.clock.now_us(), self._end)
        self.lines = InOrder(self._hand_over) if intake.in_order else None
        self.fail = parts.fail

    def done(self, done: Done) -> bool:
        """Submits finished work. Retries or ends a failed part."""
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
            "records could not be handled",
            exc_info=error,
            parts=len(owed),
            **about(owed[0][0].source, owed[0][0].message.headers),
        )
        with self._lock:
            is_on_trial = self.health.is_on_trial  # with one record: it is the cause
            if self.health.failed(what) and not is_on_trial:
                return
        now_us = self._clock.now_us()
        for unit, part in owed:
            self._submit(
                self._ends.failed(unit, part, error, now_us=now_us)
                if unit.record is not None
                else self._ends.refused(unit, error, group=self._group, now_us=now_us)
            )

    def _end(self, unit: Unit[Any]) -> None:
        """Ends the parts of a record that has killed this service."""
        self._observer.accepted(unit)
        now_us = self._clock.now_us()
        for _, part in unit.owed:
            self._submit(self._ends.failed(unit, part, DiedError(), now_us=now_us))

    def _submit(self, done: Done) -> None:
        resolved = done if done.failure is None else self._resolved(done, done.failure)
        if resolved is None:
            return
        observed = self._observer.finished(resolved)
        if self._attempts:
            for key in resolved.parts:
                self._attempts.pop(key, None)
        if self._in_flight.finish(resolved):
            if resolved.early:
                self._metrics.ended.labels(stage=self._stage_name, status=resolved.early).inc()
            (self._hand_over if self.lines is None else self.lines.done)(observed)

    def _hand_over(self, done: Done) -> None:
        self.delivery.submit(done)

    def revoked(self, partitions: frozenset[TopicPartition], unit_ids: frozenset[int]) -> None:
        """Forgets what waits for other records of these partitions, and attempts of these units."""
        if self.lines is not None:
            self.lines.revoked(partitions)
        for key in list(self._attempts):
            if key[0] in unit_ids:
                self._attempts.pop(key, None)

    def _is_for_another_member(self, done: Done) -> bool:
        """Counts failures; returns whether this member is too sick to end the part.

        Does not count rejected records: their sender caused them, not this member.
        """
        with self._lock:
            if done.failure is not None and not done.failure.is_refusal:
                return self.health.failed(done.failure.message[:500])
            if done.early is None:
                self.health.succeeded()
            return False

    def _resolved(self, done: Done, failure: Failure) -> Done | None:
        """Returns a record that tries it again instead, or adds a dead letter.

        None: it is tried again in place.
        """
        now_us, key = self._clock.now_us(), done.parts[0]
        attempt = failure.attempt if failure.again else self._attempts.pop(key, 1)
        decision = decide_retry(
            failure, attempt=attempt, limits=self._limits, group=self._group, now_us=now_us
        )
        is_over = decision.outcome == "failed"
        outcome = "failed" if is_over else "again"
        self._metrics.failures.labels(stage=self._stage_name, outcome=outcome).inc()
        if decision.outcome == "in_place":
            for unit, part in self._in_flight.unfinished(done.parts):
                self._attempts[key] = attempt + 1
                others = frozenset(range(unit.parts)) - {part}
                self._parts.again.append((replace(unit, parts_done=others), decision.begin_us))
            return None
        if not is_over:
            return replace(done, outputs=decision.outputs, early=None, failure=None)
        reason = failure.reason if failure.reason in REASONS else "processing_failed"
        self._metrics.dead_letters.labels(reason=reason).inc()
        return replace(done, outputs=done.outputs + decision.outputs, failure=None)

    def next_step(self, now_us: int) -> Literal["leave", "join"] | None:
        """Returns whether the member leaves or joins its consumer group now."""
        with self._lock:
            step = self.health.next_step(now_us, is_written=not self.delivery.backlog)
        if step == "leave":
            log.error("this member leaves its consumer group", reason=self.health.reason)
        elif step == "join":
            log.info("this member joins its consumer group again, with one record")
        return step

    def records_max(self, in_flight: int) -> int | None:
        """Returns how many more records may be taken in; None: without a limit.

        One at a time while a sick member is on trial, none before it leaves or with a suspect.
        """
        if self.health.is_leaving or self.alone:
            return 0
        return max(0, 1 - in_flight) if self.health.is_on_trial else None

    def hint(self, output: Output) -> None:
        self.delivery.hint(output)

    def refuse(self, unit: Unit[Any], error: Exception) -> None:
        now_us = self._clock.now_us()
        try:
            done = self._ends.refused(unit, error, group=self._group, now_us=now_us)
        except DeploymentError as stopped:
            self.fail(stopped)
            return
        reason = error.reason if isinstance(error, RecordError) else "processing_failed"
        self._metrics.dead_letters.labels(reason=reason).inc()
        self.done(done)

    def leave_group(self, reason: str) -> None:
        with self._lock:
            self.health.leave(reason)
