"""The loop of every service: polls records, offers units to the stage, commits finished work.

It runs on one thread, the polling thread, which never waits for work. Commits run on the thread of
the delivery. The backlog waits in Kafka while partitions are paused.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError, ConfigError, DeploymentError, RetryableError
from carpool.kafka.clients import ConsumerClient, Position, partitions_text
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.delivery.delivery import Delivery, DeliveryContext, MakeDelivery
from carpool.loop.in_flight import InFlight
from carpool.loop.local_deadlines import with_local_deadlines
from carpool.loop.priority.intake_queues import Intake, PriorityClass
from carpool.loop.priority.priority_consumer import PriorityConsumer
from carpool.loop.refusal import IntakeRefusal
from carpool.loop.reject import stop_at
from carpool.loop.retry import FailureLimits, RetryDelay, as_record_error, begin_us_of, believed
from carpool.loop.sink import LoopSink
from carpool.loop.stage import Credit, Done, R, Stage, Unit
from carpool.loop.throttle import BLOCKED_POLL_S, intake_action, poll_s
from carpool.loop.tracing.tracer import Tracer
from carpool.loop.work_observer import WorkObserver
from carpool.telemetry.logs import about
from carpool.telemetry.metrics import Metrics
from schemas.answer import Stage as StageName
from schemas.errors import RecordError
from schemas.topics import QUERY_TOPICS

log = structlog.get_logger()

FINISHED_BYTES_MAX = 64 * 1024 * 1024
REVIEW_US = 500_000
BURST_MAX = 1_000
STALLED_AFTER_US = 60_000_000
CLOSE_US = 10_000_000


class Loop(Generic[R]):
    """Runs one stage over one topic. It is the rebalance listener of its consumer."""

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
        limits: FailureLimits | None = None,
        tracer: Tracer | None = None,
        finished_bytes_max: int = FINISHED_BYTES_MAX,
        rests: bool = False,
    ) -> None:
        """Connects the parts; `start` or `run` starts them. `rests`: see `PriorityConsumer`."""
        self._intake = intake
        self._stage = stage
        self._clock = clock
        limits = limits or FailureLimits()
        self._retry_delay_us = limits.retry_delay_us
        self._observer = WorkObserver(
            metrics=metrics,
            clock=clock,
            tracer=tracer or Tracer(),
            stalled_after_us=STALLED_AFTER_US,
        )
        self.in_flight = InFlight()
        self._consumer = PriorityConsumer(
            consumer,
            (PriorityClass(topic=intake.topic, weight=intake.weight), *intake.extra_classes),
            unfinished_parts=lambda: self.in_flight.unfinished_parts,
            clock=clock,
            rests=rests,
        )
        self._finished_bytes_max = finished_bytes_max
        self._reoffers: deque[Unit[Any]] = deque()
        self._delayed = RetryDelay()
        self.sink = LoopSink(
            stage_name=name,
            group=group,
            limits=limits,
            in_flight=self.in_flight,
            observer=self._observer,
            clock=clock,
            metrics=metrics,
        )
        self.sink.delivery = make_delivery(self._delivery_context(metrics))
        self._show(metrics)
        self._member = IntakeRefusal(clock)
        self._stopping = threading.Event()
        self._is_paused = False
        self._full_partitions: frozenset[TopicPartition] = frozenset()
        self._waiting = 0
        self._next_review_us = 0
        self._wake_us: int | None = None
        self._not_ready: tuple[str, ...] = ("starting",)
        self.last_step_us = clock.now_us()

    def _delivery_context(self, metrics: Metrics) -> DeliveryContext:
        return DeliveryContext(
            in_flight=self.in_flight,
            consumer=self._consumer,
            clock=self._clock,
            metrics=metrics,
            observer=self._observer,
            reoffer=self._reoffers.extend,
            fail=self.sink.fail,
        )

    def _show(self, metrics: Metrics) -> None:
        metrics.loop.units_in_flight.set_function(lambda: self.in_flight.units)
        metrics.loop.intake_paused.set_function(lambda: self._is_paused)

    @property
    def delivery(self) -> Delivery:
        """Commits the finished work."""
        return self.sink.delivery

    @property
    def failure(self) -> CarpoolError | None:
        """Why the service cannot go on, or None."""
        return self.sink.failure

    # The rebalance listener: called from inside poll.

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Adds these partitions."""
        self.in_flight.assign(positions)
        self._stage.assigned(frozenset(positions))
        self._apply_pauses(self._stage.credit())  # before the first record comes
        self._observer.assigned(positions)

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        """Commits once more unless the partitions are `lost`, then forgets them."""
        unit_ids = self.delivery.revoked(partitions, lost=lost)
        self._delayed.forget(unit_ids)
        self._stage.revoke(unit_ids, partitions)
        self._observer.revoked(partitions, unit_ids, lost=lost)

    def fetch_failed(self, at: TopicPartition, error: str, *, lasts: bool = False) -> None:
        """Counts the error; the service is not ready while it repeats or `lasts`."""
        self._observer.fetch_failed(at, error, lasts=lasts)

    # The polling thread.

    def stop(self) -> None:
        """Asks the loop to drain and end. Safe in a signal handler."""
        self._stopping.set()

    def pause(self, seconds: float) -> bool:
        """Waits at the start, as a process that is alive; returns whether `stop` was called."""
        self.last_step_us = self._clock.now_us()
        self._not_ready = ("starting", *self._refusals())
        return self._stopping.wait(seconds)

    def insist(self, call: Callable[[], None]) -> None:
        """Calls at the start, again and again while what it raises passes by itself, until `stop`.

        Raises what somebody must mend: the process ends with it.
        """
        if not self._stopping.is_set():
            self._member.insist(call, self.pause)

    def not_ready(self) -> tuple[str, ...]:
        """Returns why this service is not ready, in words. Thread-safe."""
        return self._not_ready

    def notes(self) -> tuple[str, ...]:
        """Returns what a person should know though it is ready, in words. Thread-safe."""
        return (*self._observer.clock_notes, *self._stage.notes())

    def run(self, *, drain_us: int) -> None:
        """Runs until `stop`, then drains for at most `drain_us`. Raises `failure`, if any."""
        ended_by: BaseException | None = None
        self.start()
        try:
            while not self._stopping.is_set() and not self._must_end():
                self.step()
            if self.failure is None:
                self.drain(self._clock.now_us() + drain_us)
            ended_by = self.failure
        except BaseException as error:
            ended_by = error
            raise
        finally:
            is_known = isinstance(ended_by, CarpoolError) and type(ended_by) is not CarpoolError
            if ended_by is not None and not is_known:
                self.delivery.may_give_up = False  # a defect, of which a record may be the cause
            self.close()
        if self.failure is not None:
            raise self.failure

    def start(self) -> None:
        """Starts the stage and the delivery, then joins the consumer group. See `insist`."""
        self._stage.start(self.sink)
        # Before the group: an open transaction of an earlier process blocks reading its offsets.
        self.insist(self.delivery.start)
        self.insist(self._join)

    def _join(self) -> None:
        self._consumer.subscribe(self._intake.topic, self, self._intake.topics[1:])
        self._member.has_left = self._member.must_rejoin = False

    def close(self) -> None:
        """Commits what is finished, leaves the group, closes the stage."""
        self.delivery.close(self._clock.now_us() + CLOSE_US)
        self._consumer.close()
        self._stage.close()

    def _must_end(self) -> bool:
        """A record that this build cannot read keeps the process up, so that operators see it."""
        return self.failure is not None and not isinstance(self.failure, DeploymentError)

    def step(self) -> None:
        """Does one round: accepts records within the credit, ticks the stage, reviews readiness."""
        try:
            self._leave_or_join()
            if self._member.has_left:
                self._stopping.wait(BLOCKED_POLL_S)
            else:
                self._take()
        except (ConfigError, DeploymentError, RetryableError) as error:
            self._refused(error)
        now_us = self._after_poll()
        if now_us >= self._next_review_us:
            self._review(now_us)
        self._wake_us = self._stage.tick(now_us, self._waiting, self.delivery.next_commit_at_us)

    def _refused(self, error: CarpoolError) -> None:
        """Partitions may lack their positions now: after a pause the member joins again.

        The work in flight goes on meanwhile.
        """
        self._member.refused(error)
        self._member.must_rejoin = True

    def _leave_or_join(self) -> None:
        step = self.sink.next_step(self._clock.now_us())
        is_due = self._member.must_rejoin and not self._member.is_waiting
        if step == "leave" or (is_due and not self._member.has_left):
            self._member.has_left = True
            self._consumer.leave()
        if step == "join" or (is_due and not self.sink.is_away):
            self._join()

    def drain(self, until_us: int) -> None:
        """Accepts no more records, lets the stage finish, waits until the outputs are written.

        Does not wait for a stage that is not ready, or for what is refused.
        """
        log.info("draining", units=self.in_flight.units)
        if not self._member.has_left:
            self._is_paused = True
            self._apply_pauses(self._stage.credit())
        self._stage.drain(until_us)
        while self.in_flight.units and self._clock.now_us() < until_us and not self._must_end():
            if self._stage.not_ready() or self._refusals():
                break
            try:
                self._consumer.poll(BLOCKED_POLL_S)
            except (DeploymentError, RetryableError) as error:
                self._refused(error)
            self._stage.tick(self._after_poll(), 0)
        if self.in_flight.units:
            log.warning(
                "stopped before all work was done; the rest is done after the restart",
                units=self.in_flight.units,
            )

    def _after_poll(self) -> int:
        """Serves commits, offers units again, and returns the time."""
        self.delivery.after_poll()
        now_us = self.last_step_us = self._clock.now_us()
        self._reoffers.extend(self._delayed.due(now_us))
        while self._reoffers:
            unit = self._reoffers.popleft()
            if self.in_flight.is_live(Done(parts=unit.owed, outputs=())):
                self._offer(unit, now_us)
        if (suspect := self.sink.alone.next(now_us)) is not None:
            self._offer(suspect, now_us)
        return now_us

    def _offer(self, unit: Unit[R], now_us: int) -> None:
        if self.sink.alone.hold(unit):
            return
        try:
            self._stage.offer(self._observer.accepted(unit), now_us)
        except CarpoolError:
            raise
        except Exception as error:
            self._stage.revoke(frozenset({unit.id}), frozenset())
            self.sink.charge(unit.owed, error)

    def _review(self, now_us: int) -> None:
        """Updates lag, full partitions and readiness."""
        self._next_review_us = now_us + REVIEW_US
        stalled = self._observer.review(self._consumer.waiting())
        self._review_full_partitions()
        reasons = [] if self.failure is None else [str(self.failure)]
        reasons += self._refusals()
        if (sick := self.sink.not_ready) is not None:
            reasons.append(sick)
        reasons += self._stage.not_ready()
        reasons += self._observer.unreadable()
        if not self.in_flight.is_assigned and not self.sink.is_away:
            topics = " or ".join(self._intake.topics)
            reasons.append(f"no partition of {topics} is assigned to this member")
        if stalled is not None:
            reasons.append(stalled)
        self._not_ready = tuple(reasons)

    def _refusals(self) -> list[str]:
        """What is refused now, in words."""
        refusals = (self._member, self.delivery.refusal)
        return [reason for each in refusals if (reason := each.reason) is not None]

    def _review_full_partitions(self) -> None:
        full = self.in_flight.full_partitions()
        if came := full - self._full_partitions:
            log.warning(
                "a slow record stops the intake of its partition: too many records after it are "
                "complete; the intake goes on when the record is",
                partitions=partitions_text(came),
            )
        self._full_partitions = full

    # The intake.

    def _credit(self) -> Credit:
        """The credit of the stage, and less for a sick member or beside a suspect."""
        credit, most = self._stage.credit(), self.sink.records_max(self.in_flight.units)
        return credit if most is None else replace(credit, records=min(credit.records, most))

    def _take(self) -> None:
        credit = self._credit()
        action = intake_action(
            credit,
            finished_bytes=self.in_flight.finished_bytes,
            finished_bytes_max=self._finished_bytes_max,
            is_stopped=self._is_stopped,
        )
        self._is_paused = action == "pause"
        self._apply_pauses(credit)
        if action == "take":
            self._take_burst(credit)
        elif action == "fill":
            self._consumer.fill_queues(BLOCKED_POLL_S)
        else:
            self._poll(BLOCKED_POLL_S)

    def _take_burst(self, credit: Credit) -> None:
        records, size_bytes = min(credit.records, BURST_MAX), credit.size_bytes
        started_us = self._clock.now_us()
        is_busy = self.in_flight.units > 0 or len(self._reoffers) > 0
        message = self._poll(poll_s(is_busy=is_busy, wake_us=self._wake_us, now_us=started_us))
        # Without a new record, the count of waiting records did not grow.
        is_moving = message is not None or self._waiting > 0
        while message is not None:
            self._accept(message)
            records -= 1
            size_bytes -= message.size_bytes
            if records <= 0 or size_bytes <= 0 or not self._has_credit():
                break
            message = self._poll(0)
        if is_moving:
            self._waiting = self._records_waiting() if self.in_flight.units else 0

    def _records_waiting(self) -> int:
        """Returns how many records may still come; none of a partition that has ended."""
        waiting, ended = self._consumer.waiting(), self._observer.ended()
        return sum(records for at, records in waiting.items() if at not in ended)

    @property
    def _is_stopped(self) -> bool:
        """Whether the intake stands still, after a failure or during a refusal."""
        is_refused = self._member.must_rejoin or self.delivery.refusal.reason is not None
        return is_refused or self.failure is not None

    def _has_credit(self) -> bool:
        """A record may use more credit than one record: a group has many queries."""
        credit = self._credit()
        return not self._is_stopped and credit.records > 0 and credit.size_bytes > 0

    def _poll(self, timeout_s: float) -> Message | None:
        started_us = self._clock.now_us()
        message = self._consumer.poll(timeout_s)
        self._observer.poll_returned(started_us)
        if message is not None and not self._member.must_rejoin:
            self._member.passed()
        return message

    def _accept(self, message: Message) -> None:
        message = believed(message)
        if lead_us := self._clock.host_lead_us():
            message = replace(message, host_lead_us=lead_us)
        self._observer.taken(message)
        try:
            if message.unreadable:
                raise RecordError("unreadable", message.unreadable)
            record = with_local_deadlines(self._intake.decode(message), message)
        except Exception as error:  # a fault of ours ends this record, not the process
            self._reject(message, as_record_error(error, message))
            return
        unit = self.in_flight.take(message, record, self._intake.parts(record))
        if unit is None:
            return
        now_us = self._clock.now_us()
        begin_us = begin_us_of(message, self._retry_delay_us)
        if begin_us <= now_us or not self._delayed.add(unit, begin_us):
            self._offer(unit, now_us)

    def _reject(self, message: Message, error: RecordError) -> None:
        source = message.source
        unit: Unit[Any] | None = self.in_flight.take(message, _UNREADABLE, 1)
        if unit is None:
            return  # complete: an operator passed over it
        if source.topic not in QUERY_TOPICS:
            self.sink.fail(stop_at(source, error, stage=self.sink.stage_name))
            return
        log.info(
            "query refused",
            reason=error.reason,
            error=str(error),
            **about(source, message.headers, query_id=error.query_id),
        )
        self.sink.refuse(self._observer.accepted(unit), error)

    def _apply_pauses(self, credit: Credit) -> None:
        topics = self._intake.topics if self._is_paused else ()
        self._consumer.pause(frozenset(topics), credit.paused_partitions | self._full_partitions)


_UNREADABLE: Any = None
"""The record of a unit that could not be decoded. It is rejected and never offered to a stage."""
