"""Retries or ends queries that fail in processing, and stops the service when too many fail."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from carpool.clock import Clock
from carpool.errors import DeploymentError
from carpool.loop.retry import RetryPolicy, decide_retry
from carpool.loop.stage import Done
from carpool.telemetry.metrics import Metrics
from schemas.answer import Stage as StageName
from schemas.topics import ANSWERS


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureLimits:
    """Attempts of a query, and failures in a row before the service stops.

    `connect_names`: whether dead letters also carry the error headers of Kafka Connect.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    in_a_row_max: int = 20
    connect_names: bool = False


DEFAULT_LIMITS = FailureLimits()


class QueryFailures:
    """Applies the limits to finished work. Thread-safe.

    Rejected records do not count: their sender caused them, not this deployment.
    """

    def __init__(
        self,
        *,
        stage: StageName,
        group: str,
        limits: FailureLimits,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._stage: StageName = stage
        self._group = group
        self._limits = limits
        self._clock = clock
        self._metrics = metrics
        self._in_a_row = 0
        self._lock = threading.Lock()

    def resolve(self, done: Done) -> Done:
        """Returns what to commit for finished work.

        Of a failed query, the `failed` answer is replaced by the record that retries it, or comes
        with a dead letter. Raises `DeploymentError` when too many failed in a row: `done` stays
        unacknowledged, and the service must stop, so that its topic does not end as dead letters.
        """
        if done.failure is None:
            if any(
                output.topic != ANSWERS.name or self._stage == "generator"
                for output in done.outputs
            ):
                with self._lock:
                    # Before the generator, an answer means an expired or rejected query.
                    self._in_a_row = 0
            return done
        with self._lock:
            self._in_a_row += 1
            failures = self._in_a_row
        if failures >= self._limits.in_a_row_max:
            raise DeploymentError(
                f"{failures} queries failed in a row and none succeeded, the last with: "
                f"{done.failure.message[:500]}. Consumption has stopped, so that the topic does "
                "not end as dead letters; nothing is lost. Fix what the message names and "
                f"restart the {self._stage}"
            )
        decision = decide_retry(
            done.failure,
            policy=self._limits.retry,
            group=self._group,
            stage=self._stage,
            now_us=self._clock.now_us(),
            connect_names=self._limits.connect_names,
        )
        self._metrics.loop.query_failures.labels(stage=self._stage, outcome=decision.outcome).inc()
        if decision.outcome == "again":
            return replace(done, outputs=decision.outputs, failure=None)
        self._metrics.loop.dead_letters.labels(reason="processing_failed").inc()
        self._metrics.loop.answers.labels(stage=self._stage, status="failed").inc()
        return replace(done, outputs=done.outputs + decision.outputs, failure=None)
