"""Takes what a stage has done: finished, rejected or failed work goes to the delivery."""

from __future__ import annotations

from typing import Any

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError, DeploymentError
from carpool.kafka.records import Output
from carpool.loop.delivery.delivery import Delivery
from carpool.loop.in_flight import InFlight
from carpool.loop.query_failures import FailureLimits, QueryFailures
from carpool.loop.reject import reject_outputs
from carpool.loop.stage import Done, Unit
from carpool.loop.work_observer import WorkObserver
from carpool.telemetry.metrics import Metrics
from schemas.answer import Stage as StageName
from schemas.errors import RecordError

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
        self._query_failures = QueryFailures(
            stage=stage_name, group=group, limits=limits, clock=clock, metrics=metrics
        )
        self.failure: CarpoolError | None = None

    def done(self, done: Done) -> None:
        """See `carpool.loop.stage.Sink`."""
        try:
            resolved = self._query_failures.resolve(done)
        except DeploymentError as error:
            self.fail(error)
        else:
            self._in_flight.finish(resolved)
            self.delivery.submit(self._observer.finished(resolved))

    def hint(self, output: Output) -> None:
        """See `carpool.loop.stage.Sink`."""
        self.delivery.hint(output)

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        """See `carpool.loop.stage.Sink`."""
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
        """See `carpool.loop.stage.Sink`. The first failure is the one that is reported."""
        if self.failure is None:
            self.failure = error
            log.error("cannot go on", error=str(error), kind=type(error).__name__)
