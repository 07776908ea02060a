"""What the loop does about queries that fail in processing: decides about each, and stops the
service when too many do.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from carpool.clock import Clock
from carpool.errors import DeploymentError
from carpool.loop.retry import RetryPolicy, after_failure
from carpool.loop.stage import Done
from carpool.telemetry.metrics import Metrics
from schemas.answer import Stage as StageName
from schemas.topics import ANSWERS


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureLimits:
    """What failures may come to: tries of a query, failures in a row before the service stops, and
    whether dead letters also carry the names that Kafka Connect has for why.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    in_a_row_max: int = 20
    connect_names: bool = False


DEFAULT_LIMITS = FailureLimits()


class FailureBurst:
    """Counts failures since the last success. A pure state machine; not thread-safe.

    Refused input is neither: the sender is to blame, not this deployment.
    """

    def __init__(self, failures_max: int) -> None:
        """`failures_max`: as many in a row are a burst; at least 1."""
        self._failures_max = failures_max
        self.failures = 0

    def failed(self) -> bool:
        """Notes a failure; True when this is a burst, from then on until the next success."""
        self.failures += 1
        return self.failures >= self._failures_max

    def succeeded(self) -> None:
        """Notes a success."""
        self.failures = 0


class QueryFailures:
    """Decides about failed queries, and about going on. Thread-safe."""

    def __init__(
        self,
        *,
        stage: StageName,
        group: str,
        limits: FailureLimits,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """Nothing has failed yet."""
        self._stage: StageName = stage
        self._group = group
        self._limits = limits
        self._clock = clock
        self._metrics = metrics
        self._burst = FailureBurst(limits.in_a_row_max)
        self._lock = threading.Lock()

    def settle(self, done: Done) -> Done:
        """Returns what is to be committed for finished work: as it is, or, for a query that failed,
        with its re-entry in place of the `failed` answer, or with a dead letter beside it.

        Raises `DeploymentError` when too many have failed in a row: this one stays unacknowledged,
        and the service is to stop consuming rather than empty its topic into the dead letters.
        """
        if done.failure is None:
            if any(
                output.topic != ANSWERS.name or self._stage == "generator"
                for output in done.outputs
            ):
                with self._lock:
                    # an answer of another stage says that a query is late or refused
                    self._burst.succeeded()
            return done
        with self._lock:
            is_burst, failures = self._burst.failed(), self._burst.failures
        if is_burst:
            raise DeploymentError(
                f"{failures} queries failed in a row and none succeeded, the last with: "
                f"{done.failure.message[:500]}. Consumption has stopped, so that the topic is not "
                "emptied into the dead letters; nothing is lost. Mend what the message names and "
                f"restart the {self._stage}"
            )
        verdict = after_failure(
            done.failure,
            policy=self._limits.retry,
            group=self._group,
            stage=self._stage,
            now_us=self._clock.now_us(),
            connect_names=self._limits.connect_names,
        )
        self._metrics.loop.query_failures.labels(stage=self._stage, outcome=verdict.outcome).inc()
        if verdict.outcome == "again":
            return replace(done, outputs=verdict.outputs, failure=None)
        self._metrics.loop.dead_letters.labels(reason="processing_failed").inc()
        self._metrics.loop.answers.labels(stage=self._stage, status="failed").inc()
        return replace(done, outputs=done.outputs + verdict.outputs, failure=None)
