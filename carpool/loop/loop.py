"""The one consume-process-produce loop of all services: records in, units to the stage, finished
work to delivery.

One thread, the polling thread: it polls, offers within credit, ticks, and never waits for work. The
backlog waits in Kafka, by pausing partitions. Commits run on the delivery's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError, DeploymentError
from carpool.kafka.clients import ConsumerClient, Position
from carpool.kafka.records import Message, Output, TopicPartition
from carpool.loop.delivery.delivery import DeliveryContext, MakeDelivery
from carpool.loop.in_flight import InFlight
from carpool.loop.priority.intake_queues import Intake, PriorityClass
from carpool.loop.priority.priority_consumer import PriorityConsumer
from carpool.loop.query_failures import DEFAULT_LIMITS, FailureLimits, QueryFailures
from carpool.loop.reject import reject_outputs
from carpool.loop.retry import RetryDelay, begin_us_of
from carpool.loop.stage import Credit, Done, R, Stage, Unit
from carpool.loop.tracing.tracer import NoTracer, Tracer
from carpool.loop.work_observer import WorkObserver
from carpool.telemetry.logs import about
from carpool.telemetry.metrics import Metrics
from schemas.answer import Stage as StageName
from schemas.errors import RecordError
from schemas.topics import QUERIES, QUERIES_BATCH

log = structlog.get_logger()

METADATA_STOP_BYTES = 3_072
"""Intake stops when the commit metadata grows past this; brokers refuse 4,096 bytes."""

POLL_S = 0.05
"""How long a poll waits where the stage does not want to be called sooner: the first record ends
it.
"""
BUSY_POLL_S = 0.02
"""The same while something is in hand, whose commits may have to be asked for by this thread. Each
poll costs a tenth of a millisecond of CPU time, whether or not anything comes.
"""
HELD_BACK_S = 0.005
"""How often credit is looked for while there is none."""
PAUSE_AFTER_US = 50_000
"""How long credit may be away before partitions are paused. A pause throws away what was fetched
ahead, and fetching it again takes longer than most moments between two credits; until then nothing
is polled, which also delays commits for as long.
"""

QUERY_TOPICS = (QUERIES.name, QUERIES_BATCH.name)
"""Where a query goes round again; other records carry its headers too."""

FINISHED_BYTES_MAX = 64 * 1024 * 1024
REVIEW_US = 500_000
BURST_MAX = 1_000
STALLED_AFTER_US = 60_000_000


class Loop(Generic[R]):
    """Runs one stage over one topic. It is the stage's sink and the consumer's rebalance
    listener.
    """

    def __init__(
        self,
        *,
        name: StageName,
        group: str,
        intake: Intake[R],
        stage: Stage[R],
        consumer: ConsumerClient,
        make_delivery: MakeDelivery,
        clock: Clock,
        metrics: Metrics,
        limits: FailureLimits = DEFAULT_LIMITS,
        tracer: Tracer | None = None,
        stalled_after_us: int = STALLED_AFTER_US,
        finished_bytes_max: int = FINISHED_BYTES_MAX,
    ) -> None:
        """Wires the parts; nothing runs before `run`."""
        self._name: StageName = name
        self._group = group
        self._intake = intake
        self._stage = stage
        self._consumer = consumer
        self._clock = clock
        self._metrics = metrics
        self._observer = WorkObserver(
            metrics=metrics,
            clock=clock,
            tracer=tracer or NoTracer(),
            stalled_after_us=stalled_after_us,
        )
        self.ledger = InFlight()
        self._sort: Callable[[float], None] | None = None
        if intake.extra_classes:
            classes = (
                PriorityClass(topic=intake.topic, weight=intake.weight),
                *intake.extra_classes,
            )
            priorities = PriorityConsumer(
                consumer, classes, held=lambda: self.ledger.held, clock=clock
            )
            consumer = self._consumer = priorities
            self._sort = priorities.sort
        self._reoffers: deque[Unit[Any]] = deque()
        self._limits = limits
        self._finished_bytes_max = finished_bytes_max
        self._failures = QueryFailures(
            stage=name, group=group, limits=limits, clock=clock, metrics=metrics
        )
        self._held = RetryDelay()
        self.delivery = make_delivery(
            DeliveryContext(
                ledger=self.ledger,
                consumer=consumer,
                clock=clock,
                metrics=metrics,
                observer=self._observer,
                reoffer=self._reoffers.extend,
                fail=self.fail,
            )
        )
        metrics.loop.units_in_flight.set_function(lambda: self.ledger.in_flight)
        metrics.loop.bytes_in_flight.set_function(lambda: self.ledger.in_flight_bytes)
        metrics.loop.intake_paused.set_function(lambda: self._paused_since_us is not None)
        self._stopping = threading.Event()
        self.failure: CarpoolError | None = None
        self._assigned: set[TopicPartition] = set()
        self._paused_partitions: frozenset[TopicPartition] = frozenset()
        self._ever_assigned = False
        self._held_back_since_us: int | None = None
        self._paused_since_us: int | None = None
        self._waiting = 0
        self._is_rebalanced = False
        self._next_review_us = 0
        self._wake_us: int | None = None
        self._metadata_full = False
        self._not_ready: tuple[str, ...] = ("starting",)
        self.last_step_us = clock.now_us()

    # The sink: called from any thread.

    def done(self, done: Done) -> None:
        """See `carpool.loop.stage.Sink`."""
        try:
            settled = self._failures.settle(done)
        except DeploymentError as error:
            self.fail(error)
        else:
            self.ledger.finish(settled)
            self.delivery.submit(self._observer.finished(settled))

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
            stage=self._name,
            now_us=self._clock.now_us(),
            connect_names=self._limits.connect_names,
        )
        owed = tuple((unit.id, part) for part in range(unit.parts) if part not in unit.parts_done)
        self.done(Done(parts=owed, outputs=outputs))

    def fail(self, error: CarpoolError) -> None:
        """See `carpool.loop.stage.Sink`. The first failure is the one that is reported."""
        if self.failure is None:
            self.failure = error
            log.error("cannot go on", error=str(error), kind=type(error).__name__)

    # The rebalance listener: called from inside poll.

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Begins with these partitions."""
        self.ledger.assign(positions)
        self._stage.assigned(frozenset(positions))
        self._pause_partitions(self._stage.credit())  # before the first record comes
        self._assigned |= set(positions)
        self._ever_assigned = True
        self._observer.assigned(positions)
        self._is_rebalanced = True

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        """Forgets these partitions: one commit at most, then their units are gone from ledger and
        stage.
        """
        unit_ids = self.delivery.revoked(partitions, lost=lost)
        self._held.forget(unit_ids)
        self._stage.revoke(unit_ids)
        self._assigned -= partitions
        self._observer.revoked(partitions, unit_ids, lost=lost)
        self._is_rebalanced = True

    # The polling thread.

    def stop(self) -> None:
        """Asks the loop to drain and end. Safe in a signal handler."""
        self._stopping.set()

    def not_ready(self) -> tuple[str, ...]:
        """Returns what is missing before this service does its work, in words; thread-safe."""
        return self._not_ready

    def run(self, *, drain_us: int) -> None:
        """Runs until `stop`, then drains for at most `drain_us`. Raises what made the service give
        up, if anything did.
        """
        self.start()
        try:
            while not self._stopping.is_set() and not self._must_end():
                self.step()
            if self.failure is None:
                self.drain(self._clock.now_us() + drain_us)
        finally:
            self.close()
        if self.failure is not None:
            raise self.failure

    def start(self) -> None:
        """Starts the stage and delivery, joins the consumer group."""
        self._stage.start(self)
        # first: it ends what an earlier life left open, which holds offsets back
        self.delivery.start()
        self._consumer.subscribe(self._intake.topic, self, self._intake.topics[1:])

    def close(self) -> None:
        """Sends what is finished, commits, leaves the group, closes the stage."""
        self.delivery.close(self._clock.now_us() + 10_000_000)
        self._consumer.close()
        self._stage.close()

    def _must_end(self) -> bool:
        """A deployment fault halts the intake but keeps the process, not ready, for its operator to
        see; others end it.
        """
        return self.failure is not None and not isinstance(self.failure, DeploymentError)

    def step(self) -> None:
        """One round: take what credit allows, tick the stage, review lag and readiness now and
        then.
        """
        try:
            self._take()
        except DeploymentError as error:
            self.fail(error)
        self.delivery.attend()
        now_us = self._clock.now_us()
        self.last_step_us = now_us
        self._offer_again(now_us)
        if now_us >= self._next_review_us:
            self._review(now_us)
        self._wake_us = self._stage.tick(now_us, self._waiting, self.delivery.next_commit_at_us)

    def _pause_partitions(self, credit: Credit) -> None:
        if credit.paused_partitions != self._paused_partitions:
            self._consumer.pause_partitions(credit.paused_partitions)
            self._paused_partitions = credit.paused_partitions

    def _take(self) -> None:
        credit = self._stage.credit()
        self._pause_partitions(credit)
        records, size_bytes = min(credit.records, BURST_MAX), credit.size_bytes
        is_behind = self.ledger.finished_bytes >= self._finished_bytes_max
        is_full = self._metadata_full or self.delivery.is_full or is_behind
        if self.failure is not None or is_full or records <= 0 or size_bytes <= 0:
            self._hold_back()
            return
        self._resume()
        started_us = self._clock.now_us()
        message = self._poll(self._poll_s())
        # What waits is seen by what comes: where nothing came, no more waits than before.
        is_moving = message is not None or self._waiting > 0
        while message is not None:
            self._accept(message)
            records -= 1
            size_bytes -= message.size_bytes
            if records <= 0 or size_bytes <= 0 or not self._may_go_on():
                # what a record holds may cost more than a record: a group is as many queries as it
                # has
                break
            message = self._poll(0)
        self._observer.polled(started_us)
        if is_moving:
            self._waiting = sum(self._consumer.waiting().values()) if self.ledger.in_flight else 0

    def _may_go_on(self) -> bool:
        credit = self._stage.credit()
        return self.failure is None and credit.records > 0 and credit.size_bytes > 0

    def _hold_back(self) -> None:
        """Takes nothing: for a moment by not polling, then by pausing and polling on."""
        now_us = self._clock.now_us()
        if self._held_back_since_us is None:
            self._held_back_since_us = now_us
        if self.failure is None and self._sort is not None:
            self._sort(HELD_BACK_S)  # each topic is paused when its queue is full
            return
        if self.failure is None and now_us - self._held_back_since_us < PAUSE_AFTER_US:
            self._stopping.wait(HELD_BACK_S)
            return
        self._pause()
        message = self._poll(HELD_BACK_S)
        if message is not None and self.failure is None:
            self._accept(
                message
            )  # beyond credit, but a record that was polled and dropped would be lost

    def _poll(self, timeout_s: float) -> Message | None:
        started_us = self._clock.now_us()
        message = self._consumer.poll(timeout_s)
        if self._is_rebalanced:
            self._is_rebalanced = False
            self._observer.rebalanced(started_us)
        return message

    def _poll_s(self) -> float:
        poll_s = BUSY_POLL_S if self.ledger.in_flight or self._reoffers else POLL_S
        if self._wake_us is None:
            return poll_s
        return min(poll_s, max(0.0, (self._wake_us - self._clock.now_us()) / 1_000_000))

    def _accept(self, message: Message) -> None:
        self._observer.taken(message)
        try:
            record = self._intake.decode(message)
        except RecordError as error:
            self._bad(message, error)
            return
        unit = self.ledger.take(message, record, self._intake.parts(record))
        if unit is None:
            return
        now_us = self._clock.now_us()
        begin_us = (
            begin_us_of(message, self._limits.retry) if message.source.topic in QUERY_TOPICS else 0
        )
        if begin_us <= now_us or not self._held.hold(unit, begin_us):
            self._stage.offer(self._observer.accepted(unit), now_us)

    def _bad(self, message: Message, error: RecordError) -> None:
        source = message.source
        if self._intake.bad_input == "stop":
            self.fail(
                DeploymentError(
                    f"{source.topic}[{source.partition}] at {source.offset} cannot be read by this "
                    f"build: {error}. Records of this topic are written by Carpool itself, so a "
                    "newer or broken service wrote it: deploy matching versions. Consumption has "
                    "stopped; nothing is lost."
                )
            )
            return
        log.info(
            "query refused",
            reason=error.reason,
            error=str(error),
            **about(source, message.headers, query_id=error.query_id),
        )
        unit = self.ledger.take(message, _UNREADABLE, 1)
        if unit is not None:
            self.refuse(self._observer.accepted(unit), error)

    def _offer_again(self, now_us: int) -> None:
        self._reoffers.extend(self._held.due(now_us))
        while self._reoffers:
            unit = self._reoffers.popleft()
            if self.ledger.is_live(Done(parts=self._owed(unit), outputs=())):
                self._stage.offer(self._observer.accepted(unit), now_us)

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
            self._metrics.loop.paused_seconds.inc(
                (self._clock.now_us() - self._paused_since_us) / 1_000_000
            )
            self._paused_since_us = None
            self._consumer.resume()

    def _review(self, now_us: int) -> None:
        """What is looked at twice a second: lag, commit metadata, readiness."""
        self._next_review_us = now_us + REVIEW_US
        waiting = self._consumer.waiting()
        stands_still = self._observer.review(waiting)
        self._metadata_full = self.ledger.metadata_bytes() > METADATA_STOP_BYTES
        reasons = list(self._stage.not_ready())
        if self.failure is not None:
            reasons.insert(0, str(self.failure))
        if not self._assigned:
            reasons.append(
                f"no partition of {' or '.join(self._intake.topics)} is assigned to this member"
            )
        if stands_still is not None:
            reasons.append(stands_still)
        self._not_ready = tuple(reasons)

    def drain(self, until_us: int) -> None:
        """Takes nothing more, lets the stage finish, waits for the outputs to be written."""
        log.info("draining", units=self.ledger.in_flight)
        self._pause()
        self._stage.drain(until_us)
        while self.ledger.in_flight and self._clock.now_us() < until_us and not self._must_end():
            self._consumer.poll(HELD_BACK_S)
            self.delivery.attend()
            now_us = self._clock.now_us()
            self.last_step_us = now_us
            self._offer_again(now_us)
            self._stage.tick(now_us, 0)
        if self.ledger.in_flight:
            log.warning(
                "stopped before all was done; the rest is worked on after the restart",
                units=self.ledger.in_flight,
            )


_UNREADABLE: Any = None
"""The record of a unit that could not be decoded: it is refused at once and never offered to a
stage.
"""
