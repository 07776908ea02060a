"""The one consume-process-produce loop of all services: records in, units to the stage, finished work to delivery.

One thread, the polling thread: it polls, offers within credit, ticks, and never waits for work. The backlog waits in
Kafka, by pausing partitions. Commits run on the delivery's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError, DeploymentError
from carpool.kafka.clients import ConsumerClient, Position, ProducerClient, TopicPartition
from carpool.kafka.delivery import AtLeastOnceDelivery
from carpool.kafka.ledger import WorkLedger
from carpool.kafka.refusal import refusal_outputs
from carpool.kafka.stage import Done, Message, Output, R, Stage, Unit
from carpool.telemetry.metrics import Metrics
from schemas.answer import Stage as StageName
from schemas.errors import RecordError

log = structlog.get_logger()

METADATA_STOP_BYTES = 3_072
"""Intake stops when the commit metadata grows past this; brokers refuse 4,096 bytes."""

BUSY_POLL_S = 0.005
IDLE_POLL_S = 0.05
PAUSE_AFTER_US = 50_000
"""How long credit may be away before partitions are paused. A pause throws away what was fetched ahead, and fetching it again
takes longer than most moments between two credits; until then nothing is polled, which also delays commits for as long."""

REVIEW_US = 500_000
BURST_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Intake(Generic[R]):
    """How a service reads its topic.

    `decode` raises `RecordError`. `bad_input` says what that means: "refuse" (queries: dead letter and `failed` answer)
    or "stop" (internal topics: a deployment fault, the service stops consuming). `parts` counts what a record owes.
    """

    topic: str
    decode: Callable[[Message], R]
    bad_input: Literal["refuse", "stop"]
    parts: Callable[[R], int] = lambda _: 1


class Loop(Generic[R]):
    """Runs one stage over one topic. It is the stage's sink and the consumer's rebalance listener."""

    def __init__(
        self,
        *,
        name: StageName,
        group: str,
        intake: Intake[R],
        stage: Stage[R],
        consumer: ConsumerClient,
        make_producer: Callable[[], ProducerClient],
        make_hint_producer: Callable[[], ProducerClient],
        clock: Clock,
        metrics: Metrics,
        commit_interval_ms: int,
    ) -> None:
        """Wires the parts; nothing runs before `run`."""
        self._name: StageName = name
        self._group = group
        self._intake = intake
        self._stage = stage
        self._consumer = consumer
        self._clock = clock
        self._metrics = metrics
        self.ledger = WorkLedger()
        self._reoffers: deque[Unit[Any]] = deque()
        self.delivery = AtLeastOnceDelivery(
            ledger=self.ledger,
            consumer=consumer,
            make_producer=make_producer,
            make_hint_producer=make_hint_producer,
            clock=clock,
            metrics=metrics,
            commit_interval_ms=commit_interval_ms,
            reoffer=self._reoffers.extend,
            fail=self.fail,
        )
        metrics.units_in_flight.set_function(lambda: self.ledger.in_flight)
        metrics.bytes_in_flight.set_function(lambda: self.ledger.in_flight_bytes)
        self._stopping = threading.Event()
        self.failure: CarpoolError | None = None
        self._assigned: set[TopicPartition] = set()
        self._ever_assigned = False
        self._held_back_since_us: int | None = None
        self._paused_since_us: int | None = None
        self._waiting = 0
        self._next_review_us = 0
        self._wake_us: int | None = None
        self._metadata_full = False
        self._not_ready: tuple[str, ...] = ("starting",)
        self.last_step_us = clock.now_us()

    # The sink: called from any thread.

    def done(self, done: Done) -> None:
        """See `carpool.kafka.stage.Sink`."""
        self.delivery.submit(done)

    def hint(self, output: Output) -> None:
        """See `carpool.kafka.stage.Sink`."""
        self.delivery.hint(output)

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        """See `carpool.kafka.stage.Sink`."""
        self._metrics.dead_letters.labels(reason=error.reason).inc()
        outputs = refusal_outputs(unit.message, error, group=self._group, stage=self._name, now_us=self._clock.now_us())
        owed = tuple((unit.id, part) for part in range(unit.parts) if part not in unit.parts_done)
        self.delivery.submit(Done(parts=owed, outputs=outputs))

    def fail(self, error: CarpoolError) -> None:
        """See `carpool.kafka.stage.Sink`. The first failure is the one that is reported."""
        if self.failure is None:
            self.failure = error
            log.error("cannot go on", error=str(error), kind=type(error).__name__)

    # The rebalance listener: called from inside poll.

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Begins with these partitions."""
        self.ledger.assign(positions)
        self._assigned |= set(positions)
        self._ever_assigned = True
        self._metrics.rebalances.labels(event="assigned").inc()

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        """Forgets these partitions: one commit at most, then their units are gone from ledger and stage."""
        unit_ids = self.delivery.revoked(partitions, lost=lost)
        self._stage.revoke(unit_ids)
        self._assigned -= partitions
        self._metrics.rebalances.labels(event="lost" if lost else "revoked").inc()

    # The polling thread.

    def stop(self) -> None:
        """Asks the loop to drain and end. Safe in a signal handler."""
        self._stopping.set()

    def not_ready(self) -> tuple[str, ...]:
        """Returns what is missing before this service does its work, in words; thread-safe."""
        return self._not_ready

    def run(self, *, drain_us: int) -> None:
        """Runs until `stop`, then drains for at most `drain_us`. Raises what made the service give up, if anything did."""
        self.start()
        try:
            while not self._stopping.is_set() and not self._must_end():
                self.step()
            if self.failure is None:
                self._drain(self._clock.now_us() + drain_us)
        finally:
            self.close()
        if self.failure is not None:
            raise self.failure

    def start(self) -> None:
        """Starts the stage, joins the consumer group, starts delivery."""
        self._stage.start(self)
        self._consumer.subscribe(self._intake.topic, self)
        self.delivery.start()

    def close(self) -> None:
        """Sends what is finished, commits, leaves the group, closes the stage."""
        self.delivery.close(self._clock.now_us() + 10_000_000)
        self._consumer.close()
        self._stage.close()

    def _must_end(self) -> bool:
        """A deployment fault halts the intake but keeps the process, not ready, for its operator to see; others end it."""
        return self.failure is not None and not isinstance(self.failure, DeploymentError)

    def step(self) -> None:
        """One round: take what credit allows, tick the stage, review lag and readiness now and then."""
        try:
            self._take()
        except DeploymentError as error:
            self.fail(error)
        now_us = self._clock.now_us()
        self.last_step_us = now_us
        self._offer_again(now_us)
        if now_us >= self._next_review_us:
            self._review(now_us)
        self._wake_us = self._stage.tick(now_us, self._waiting)

    def _take(self) -> None:
        credit = self._stage.credit()
        records, size_bytes = min(credit.records, BURST_MAX), credit.size_bytes
        if self.failure is not None or self._metadata_full or records <= 0 or size_bytes <= 0:
            self._hold_back()
            return
        self._resume()
        message = self._consumer.poll(self._poll_s())
        while message is not None:
            self._accept(message)
            records -= 1
            size_bytes -= message.size_bytes
            if records <= 0 or size_bytes <= 0 or not self._may_go_on():
                break  # what a record holds may cost more than a record: a group is as many queries as it has
            message = self._consumer.poll(0)
        self._waiting = sum(self._consumer.waiting().values()) if self.ledger.in_flight else 0

    def _may_go_on(self) -> bool:
        credit = self._stage.credit()
        return self.failure is None and credit.records > 0 and credit.size_bytes > 0

    def _hold_back(self) -> None:
        """Takes nothing: for a moment by not polling, then by pausing and polling on."""
        now_us = self._clock.now_us()
        if self._held_back_since_us is None:
            self._held_back_since_us = now_us
        if self.failure is None and now_us - self._held_back_since_us < PAUSE_AFTER_US:
            self._stopping.wait(BUSY_POLL_S)
            return
        self._pause()
        message = self._consumer.poll(BUSY_POLL_S)
        if message is not None and self.failure is None:
            self._accept(message)  # beyond credit, but a record that was polled and dropped would be lost

    def _poll_s(self) -> float:
        if self._wake_us is not None:
            return min(IDLE_POLL_S, max(0.0, (self._wake_us - self._clock.now_us()) / 1_000_000))
        return BUSY_POLL_S if self.ledger.in_flight or self._reoffers else IDLE_POLL_S

    def _accept(self, message: Message) -> None:
        source = message.source
        self._metrics.records_consumed.labels(topic=source.topic).inc()
        self._metrics.lag_seconds.set(max(0.0, message.received_us / 1_000_000 - source.timestamp_ms / 1_000))
        try:
            record = self._intake.decode(message)
        except RecordError as error:
            self._bad(message, error)
            return
        unit = self.ledger.take(message, record, self._intake.parts(record))
        if unit is not None:
            self._stage.offer(unit, self._clock.now_us())

    def _bad(self, message: Message, error: RecordError) -> None:
        source = message.source
        place = {"topic": source.topic, "partition": source.partition, "offset": source.offset}
        if self._intake.bad_input == "stop":
            self.fail(
                DeploymentError(
                    f"{source.topic}[{source.partition}] at {source.offset} cannot be read by this build: {error}. Records "
                    "of this topic are written by Carpool itself, so a newer or broken service wrote it: deploy matching "
                    "versions. Consumption has stopped; nothing is lost."
                )
            )
            return
        log.info("query refused", reason=error.reason, error=str(error), query_id=error.query_id, **place)
        unit = self.ledger.take(message, _UNREADABLE, 1)
        if unit is not None:
            self.refuse(unit, error)

    def _offer_again(self, now_us: int) -> None:
        while self._reoffers:
            unit = self._reoffers.popleft()
            if self.ledger.is_live(Done(parts=self._owed(unit), outputs=())):
                self._stage.offer(unit, now_us)

    @staticmethod
    def _owed(unit: Unit[Any]) -> tuple[tuple[int, int], ...]:
        return tuple((unit.id, part) for part in range(unit.parts) if part not in unit.parts_done)

    def _pause(self) -> None:
        if self._paused_since_us is None:
            self._paused_since_us = self._clock.now_us()
            self._consumer.pause()

    def _resume(self) -> None:
        self._held_back_since_us = None
        if self._paused_since_us is not None:
            self._metrics.paused_seconds.inc((self._clock.now_us() - self._paused_since_us) / 1_000_000)
            self._paused_since_us = None
            self._consumer.resume()

    def _review(self, now_us: int) -> None:
        """What is looked at twice a second: lag, commit metadata, readiness."""
        self._next_review_us = now_us + REVIEW_US
        waiting = self._consumer.waiting()
        for at, records in waiting.items():
            self._metrics.lag_records.labels(topic=at.topic, partition=str(at.partition)).set(records)
        if not self.ledger.in_flight and not any(waiting.values()):
            self._metrics.lag_seconds.set(0)
            self._metrics.last_progress_seconds.set(now_us / 1_000_000)
        self._metadata_full = self.ledger.metadata_bytes() > METADATA_STOP_BYTES
        reasons = list(self._stage.not_ready())
        if self.failure is not None:
            reasons.insert(0, str(self.failure))
        if not self._assigned:
            reasons.append(f"no partition of {self._intake.topic} is assigned to this member")
        self._not_ready = tuple(reasons)

    def _drain(self, until_us: int) -> None:
        """Takes nothing more, lets the stage finish, waits for the outputs to be written."""
        log.info("draining", units=self.ledger.in_flight)
        self._pause()
        self._stage.drain(until_us)
        while self.ledger.in_flight and self._clock.now_us() < until_us and not self._must_end():
            self._consumer.poll(BUSY_POLL_S)
            now_us = self._clock.now_us()
            self.last_step_us = now_us
            self._offer_again(now_us)
            self._stage.tick(now_us, 0)
        if self.ledger.in_flight:
            log.warning(
                "stopped before all was done; the rest is worked on after the restart", units=self.ledger.in_flight
            )


_UNREADABLE: Any = None
"""The record of a unit that could not be decoded: it is refused at once and never offered to a stage."""
