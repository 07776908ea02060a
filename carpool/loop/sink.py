"""The sink of a stage: retries failed queries, rejects bad ones, and submits finished work."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError, DeploymentError
from carpool.kafka.records import Output
from carpool.loop.delivery.delivery import Delivery
from carpool.loop.in_flight import InFlight
from carpool.loop.reject import reject_outputs
from carpool.loop.retry import FailureLimits, decide_retry
from carpool.loop.stage import Done, QueryFailure, Unit
from carpool.loop.work_observer import WorkObserver
from carpool.telemetry.metrics import Metrics
from schemas.answer import Stage as StageName
from schemas.errors import RecordError
from schemas.topics import ANSWERS

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
        self._stage_name: StageName = stage_name
        self._group = group
        self._limits = limits
        self._in_flight = in_flight
        self._observer = observer
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._in_a_row = 0
        self.failure: CarpoolError | None = None

    def done(self, done: Done) -> None:
        """Submits finished work. Retries or ends a failed query."""
        in_a_row = self._count(done)
        if in_a_row >= self._limits.in_a_row_max:  # `done` stays unacknowledged
            assert done.failure is not None
            self.fail(
                DeploymentError(
                    f"{in_a_row} queries failed in a row and none succeeded, the last with: "
                    f"{done.failure.message[:500]}. Consumption has stopped, so that the topic "
                    "does not end as dead letters; nothing is lost. Fix what the message names "
                    f"and restart the {self._stage_name}"
                )
            )
            return
        resolved = done if done.failure is None else self._resolved(done, done.failure)
        self._in_flight.finish(resolved)
        self.delivery.submit(self._observer.finished(resolved))

    def _count(self, done: Done) -> int:
        """Returns the number of failures in a row that end with `done`; 0: no failure.

        Does not count rejected records: their sender caused them, not this deployment.
        """
        with self._lock:
            if done.failure is not None:
                self._in_a_row += 1
                return self._in_a_row
            # Before the generator, an answer means an expired or rejected query.
            if any(
                output.topic != ANSWERS.name or self._stage_name == "generator"
                for output in done.outputs
            ):
                self._in_a_row = 0
            return 0

    def _resolved(self, done: Done, failure: QueryFailure) -> Done:
        """Replaces the `failed` answer by a retry record, or adds a dead letter."""
        outcome, outputs = decide_retry(
            failure,
            limits=self._limits,
            group=self._group,
            stage=self._stage_name,
            now_us=self._clock.now_us(),
        )
        metrics = self._metrics.loop
        metrics.query_failures.labels(stage=self._stage_name, outcome=outcome).inc()
        if outcome == "again":
            return replace(done, outputs=outputs, failure=None)
        metrics.dead_letters.labels(reason="processing_failed").inc()
        metrics.answers.labels(stage=self._stage_name, status="failed").inc()
        return replace(done, outputs=done.outputs + outputs, failure=None)

    def hint(self, output: Output) -> None:
        self.delivery.hint(output)

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        self._metrics.loop.dead_letters.labels(reason=error.reason).inc()
        outputs = reject_outputs(
            unit.message,
            error,
            group=self._group,
            stage=self._stage_name,
            now_us=self._clock.now_us(),
            connect_names=self._limits.connect_names,
        )
        self.done(Done(parts=unit.owed, outputs=outputs))

    def fail(self, error: CarpoolError) -> None:
        """Reports the first failure only."""
        if self.failure is None:
            self.failure = error
            log.error("cannot go on", error=str(error), kind=type(error).__name__)
