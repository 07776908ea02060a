"""The loop of every service: polls records, offers units to the stage, commits finished work.

It runs on one thread, the polling thread, which never waits for work. Commits run on the thread of
the delivery. The backlog waits in Kafka while partitions are paused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic

import structlog

from carpool.clock import Clock
from carpool.errors import CarpoolError, ConfigError, DeploymentError, RetryableError
from carpool.kafka.clients import ConsumerClient
from carpool.loop.delivery.delivery import Delivery, LoopParts, MakeDelivery
from carpool.loop.in_flight import InFlight
from carpool.loop.positions import Positions
from carpool.loop.priority.intake_queues import Intake
from carpool.loop.priority.priority_consumer import PriorityConsumer
from carpool.loop.readiness import why_not_ready
from carpool.loop.retry import FailureLimits
from carpool.loop.sink import LoopSink
from carpool.loop.stage import R, Stage
from carpool.loop.taking import Taking
from carpool.loop.throttle import BLOCKED_POLL_S
from carpool.loop.work_observer import Tracer, WorkObserver
from carpool.telemetry.metrics import Metrics

log = structlog.get_logger()

REVIEW_US = 500_000
CLOSE_US = 10_000_000


class Loop(Generic[R]):
    """Runs one stage over one topic."""

    def __init__(
        self,
        *,
        name: str,
        group: str,
        intake: Intake[R],
        stage: Stage[R],
        consumer: ConsumerClient,
        make_delivery: MakeDelivery,
        clock: Clock,
        metrics: Metrics,
        limits: FailureLimits | None = None,
        tracer: Tracer | None = None,
        rests: bool = False,
    ) -> None:
        """Connects the parts; `start` or `run` starts them. `rests`: see `PriorityConsumer`."""
        limits = limits or FailureLimits()
        self._topics = intake.topics
        self._stage = stage
        self._clock = clock
        self._observer = WorkObserver(metrics=metrics, clock=clock, tracer=tracer or Tracer())
        self.positions = Positions()
        self.in_flight = InFlight(self.positions)
        self._consumer = PriorityConsumer(
            consumer,
            intake.classes,
            unfinished_parts=self.in_flight.unfinished_parts,
            clock=clock,
            rests=rests,
        )
        self._parts = parts = LoopParts(
            in_flight=self.in_flight,
            consumer=self._consumer,
            observer=self._observer,
            clock=clock,
            metrics=metrics,
        )
        self.sink = LoopSink(name, group, intake, limits, parts)
        self.taking = Taking(intake, stage, self.sink, parts, limits.retry_delay_us)
        self.sink.delivery = make_delivery(parts)
        metrics.loop.units_in_flight.set_function(lambda: len(self.in_flight.units))
        metrics.loop.intake_paused.set_function(lambda: self.taking.is_paused)
        self._has_left = False
        self._stopping = threading.Event()
        self._next_review_us = 0
        self._not_ready: tuple[str, ...] = ("starting",)
        self.last_step_us = clock.now_us()

    @property
    def delivery(self) -> Delivery:
        """Commits the finished work."""
        return self.sink.delivery

    @property
    def failure(self) -> CarpoolError | None:
        """Why the service cannot go on, or None."""
        return self._parts.failure

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
            self.taking.refusal.insist(call, self.pause)

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
        self._consumer.inner.subscribe(self._topics[0], self.taking, self._topics[1:])
        self._has_left = self.taking.must_rejoin = False

    def close(self) -> None:
        """Commits what is finished, leaves the group, closes the stage."""
        self.delivery.close(self._clock.now_us() + CLOSE_US)
        self._consumer.inner.close()
        self._stage.close()

    def _must_end(self) -> bool:
        """A record that this build cannot read keeps the process up, so that operators see it."""
        return self.failure is not None and not isinstance(self.failure, DeploymentError)

    def step(self) -> None:
        """Does one round: accepts records within the credit, ticks the stage, reviews readiness."""
        try:
            self._leave_or_join()
            if self._has_left:
                self._stopping.wait(BLOCKED_POLL_S)
            else:
                self.taking.take()
        except (ConfigError, DeploymentError, RetryableError) as error:
            self._refused(error)
        now_us = self._after_poll()
        if now_us >= self._next_review_us:
            self._review(now_us)
        next_us = self.delivery.next_commit_at_us
        self.taking.wake_us = self._stage.tick(now_us, self.taking.waiting, next_us)

    def _refused(self, error: CarpoolError) -> None:
        """Partitions may lack their positions now: after a pause the member joins again.

        The work in flight goes on meanwhile.
        """
        self.taking.refusal.refused(error)
        self.taking.must_rejoin = True

    def _leave_or_join(self) -> None:
        step = self.sink.next_step(self._clock.now_us())
        is_due = self.taking.must_rejoin and not self.taking.refusal.is_waiting
        if step == "leave" or (is_due and not self._has_left):
            self._has_left = True
            self._consumer.inner.leave()
        if step == "join" or (is_due and not self.sink.health.is_away):
            self._join()

    def drain(self, until_us: int) -> None:
        """Accepts no more records, lets the stage finish, waits until the outputs are written.

        Does not wait for a stage that is not ready, or for what is refused.
        """
        log.info("draining", units=len(self.in_flight.units))
        if not self._has_left:
            self.taking.pause()
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
                units=len(self.in_flight.units),
            )

    def _after_poll(self) -> int:
        """Serves commits, offers units again, and returns the time."""
        self.delivery.after_poll()
        now_us = self.last_step_us = self._clock.now_us()
        self.taking.offer_again(now_us)
        return now_us

    def _review(self, now_us: int) -> None:
        """Updates lag, full partitions and readiness."""
        self._next_review_us = now_us + REVIEW_US
        stalled = self._observer.review(self._consumer.waiting())
        self.taking.review()
        unreadable = self._observer.fetch_errors.reasons(now_us)
        if stalled and self.taking.may_come and not (self.in_flight.units or unreadable):
            # The client fetches no more, without an error. A new one does.
            self._refused(RetryableError(f"{stalled}: this member joins its group again"))
        health = self.sink.health
        has_none = not (self.positions.assigned or health.is_away)
        self._not_ready = why_not_ready(
            failure=self.failure,
            refusals=self._refusals(),
            sick=health.reason,
            missing=self._stage.not_ready(),
            unreadable=unreadable,
            unassigned=self._topics if has_none else (),
            stalled=stalled,
        )

    def _refusals(self) -> list[str]:
        """What is refused now, in words."""
        refusals = (self.taking.refusal, self.delivery.refusal)
        return [reason for each in refusals if (reason := each.reason) is not None]
