"""Takes records in: polls within the credit of the stage, decodes, and offers units.

All calls are made on the polling thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic

import structlog

from carpool.errors import CarpoolError, RecordError
from carpool.kafka.clients import Position, partitions_text
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.delivery.delivery import LoopParts
from carpool.loop.priority.intake_queues import Intake
from carpool.loop.refusal import Refusal
from carpool.loop.retry import RetryDelay, begin_us_of
from carpool.loop.sink import LoopSink
from carpool.loop.stage import Credit, R, Stage, Unit
from carpool.loop.throttle import BLOCKED_POLL_S, intake_action, poll_s
from carpool.telemetry.logs import about

log = structlog.get_logger()

FINISHED_BYTES_MAX = 64 * 1024 * 1024
BURST_MAX = 1_000


class Taking(Generic[R]):
    """The intake of a loop, and the rebalance listener of its consumer."""

    def __init__(
        self,
        intake: Intake[R],
        stage: Stage[R],
        sink: LoopSink,
        parts: LoopParts,
        retry_delay_us: int,
    ) -> None:
        self._intake = intake
        self._stage = stage
        self._sink = sink
        self._parts = parts
        self.in_flight = parts.in_flight
        self._consumer = parts.consumer
        self._observer = parts.observer
        self._clock = parts.clock
        self.fetch_failed = parts.observer.fetch_failed
        self._retry_delay_us = retry_delay_us
        self._delayed = RetryDelay()
        self._full_partitions: frozenset[TopicPartition] = frozenset()
        self.refusal = Refusal(parts.clock)
        """What the brokers refuse of the intake, or nothing."""
        self.must_rejoin = False
        """Whether partitions may lack their positions, because of a refusal."""
        self.is_paused = False
        self.may_come = False
        """Whether a record that comes is accepted now."""
        self.waiting = 0
        """Known number of records that wait at the brokers."""
        self.wake_us: int | None = None
        """When the stage is called next."""

    # The rebalance listener: called from inside poll.

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Adds these partitions."""
        self.in_flight.positions.assign(positions)
        self._stage.assigned(frozenset(positions))
        self._apply_pauses(self._stage.credit())  # before the first record comes
        self._observer.assigned(positions)

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        """Commits once more unless the partitions are `lost`, then forgets them."""
        self._consumer.forget(partitions)
        unit_ids = self._sink.delivery.revoked(partitions, lost=lost)
        self._sink.revoked(partitions, unit_ids)
        self._stage.revoke(unit_ids, partitions)
        self._observer.revoked(partitions, unit_ids, lost=lost)

    # Units that are offered again.

    def offer_again(self, now_us: int) -> None:
        """Offers units again that are due, and one that is tried alone."""
        while self._parts.again:
            self._delay(*self._parts.again.popleft(), now_us)
        for unit in self._delayed.due(now_us):
            self._offer(unit, now_us)
        if (suspect := self._sink.alone.next(now_us)) is not None:
            self._offer(suspect, now_us)

    def _delay(self, unit: Unit[R], until_us: int, now_us: int) -> None:
        """Offers a unit at a time; now, if it has come, or too many wait."""
        if until_us <= now_us or not self._delayed.add(unit, until_us):
            self._offer(unit, now_us)

    def _offer(self, unit: Unit[R], now_us: int) -> None:
        if not self.in_flight.is_live(unit.owed) or self._sink.alone.hold(unit):
            return
        try:
            self._stage.offer(self._observer.accepted(unit), now_us)
        except CarpoolError:
            raise
        except Exception as error:
            self._stage.revoke(frozenset({unit.id}), frozenset())
            self._sink.charge(unit.owed, error)

    def review(self) -> None:
        full = self.in_flight.positions.full()
        if came := full - self._full_partitions:
            log.warning(
                "a slow record stops the intake of its partition: too many records after it are "
                "complete; the intake goes on when the record is",
                partitions=partitions_text(came),
            )
        self._full_partitions = full

    # New records.

    def pause(self) -> None:
        """Takes no more records in."""
        self.is_paused = True
        self._apply_pauses(self._stage.credit())

    def _credit(self) -> Credit:
        """The credit of the stage, and less for a sick member or with a suspect."""
        credit, most = self._stage.credit(), self._sink.records_max(len(self.in_flight.units))
        return credit if most is None else replace(credit, records=min(credit.records, most))

    def take(self) -> None:
        credit = self._credit()
        action = intake_action(
            credit,
            finished_bytes=self.in_flight.finished_bytes,
            finished_bytes_max=FINISHED_BYTES_MAX,
            is_stopped=self._is_stopped,
        )
        self.is_paused, self.may_come = action == "pause", action == "take"
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
        is_busy = bool(self.in_flight.units)
        message = self._poll(poll_s(is_busy=is_busy, wake_us=self.wake_us, now_us=started_us))
        # Without a new record, the count of waiting records did not grow.
        is_moving = message is not None or self.waiting > 0
        while message is not None:
            self._accept(message)
            records -= 1
            size_bytes -= message.size_bytes
            if records <= 0 or size_bytes <= 0 or not self._has_credit():
                break
            message = self._poll(0)
        if is_moving:
            self.waiting = self._records_waiting() if self.in_flight.units else 0

    def _records_waiting(self) -> int:
        """Returns how many records may still come; none of a partition that has ended."""
        waiting, ended = self._consumer.waiting(), self._observer.fetch_errors.ended()
        return sum(records for at, records in waiting.items() if at not in ended)

    @property
    def _is_stopped(self) -> bool:
        """Whether the intake stands still, after a failure or during a refusal."""
        is_refused = self.must_rejoin or self._sink.delivery.refusal.reason is not None
        return is_refused or self._parts.failure is not None

    def _has_credit(self) -> bool:
        """A record of many parts may use more credit than one record."""
        credit = self._credit()
        return not self._is_stopped and credit.records > 0 and credit.size_bytes > 0

    def _poll(self, timeout_s: float) -> Message | None:
        started_us = self._clock.now_us()
        message = self._consumer.poll(timeout_s)
        self._observer.poll_returned(started_us)
        if message is not None and not self.must_rejoin:
            self.refusal.passed()
        return message

    def _accept(self, message: Message) -> None:
        message = self._intake.believed(message)
        if lead_us := self._clock.host_lead_us():
            message = replace(message, host_lead_us=lead_us)
        self._observer.taken(message)
        try:
            if message.unreadable:
                raise RecordError("unreadable", message.unreadable)
            record = self._intake.decode(message)
        except Exception as error:  # a fault of ours ends this record, not the process
            self._reject(message, error)
            return
        unit = self._unit(message, record, self._intake.parts(record))
        if unit is None:
            return
        now_us = self._clock.now_us()
        begin_us = begin_us_of(message, self._retry_delay_us)
        self._delay(unit, begin_us, now_us)

    def _reject(self, message: Message, error: Exception) -> None:
        unit = self._unit(message, None, 1)
        if unit is None:
            return  # complete: an operator passed over it
        log.info("record refused", error=str(error), **about(message.source, message.headers))
        self._sink.refuse(self._observer.accepted(unit), error)

    def _unit(self, message: Message, record: R | None, parts: int) -> Unit[Any] | None:
        unit = self.in_flight.take(message, record, parts)
        if unit is not None and self._sink.lines is not None:
            self._sink.lines.taken(unit)
        return unit

    def _apply_pauses(self, credit: Credit) -> None:
        topics = self._intake.topics if self.is_paused else ()
        self._consumer.pause(frozenset(topics), credit.paused_partitions | self._full_partitions)
