"""Observes every record from its arrival to its commit, for metrics, traces and readiness."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import structlog

from carpool.clock import Clock
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.stage import Done, R, Unit
from carpool.loop.stall_detector import FetchErrors, StallDetector
from carpool.telemetry.metrics import Metrics

log = structlog.get_logger()

STALLED_AFTER_US = 60_000_000
MINUTE_US, NEVER_US = 60_000_000, 1 << 62
CLOCK_OFF_S = 10
CLOCK_OFF = "deadlines pass early or late. Synchronise the hosts; no service needs a restart"


@dataclass(slots=True)
class _UnitTimes:
    """A unit in flight: its arrival, its number of parts, and the finish time of each part."""

    topic: str
    received_us: int
    owed: int
    traceparents: tuple[str, ...]
    finished_us: dict[int, int] = field(default_factory=dict)


class Tracer:
    """The seam to a tracing system: notes every unit, to its commit. This one traces nothing.

    Thread-safe; only `close` blocks. Times are epoch microseconds.
    """

    def opened(self, unit: Unit[Any]) -> tuple[str, ...]:
        """Begins the spans of a unit; returns the `traceparent` of each part; empty: no traces."""
        return ()

    def finished(self, done: Done, now_us: int) -> Done:
        """Notes finished work; returns it with trace headers in its outputs."""
        return done

    def completed(self, done: Done, now_us: int) -> None:
        """Ends the spans of these parts: their outputs are committed."""

    def revoked(self, unit_ids: Iterable[int], now_us: int) -> None:
        """Ends the spans of revoked units."""

    def close(self) -> None:
        """Exports what is left, for a few seconds at most."""


class WorkObserver:
    """Measures work. Changes only the trace headers of outputs. Never blocks.

    Thread-safe where a method says so; only the polling thread calls the others. Its memory is
    bounded by the units in flight.
    """

    def __init__(
        self,
        *,
        metrics: Metrics,
        clock: Clock,
        tracer: Tracer,
        stalled_after_us: int = STALLED_AFTER_US,
    ) -> None:
        """`stalled_after_us`: see `StallDetector`."""
        self._metrics = metrics
        self._clock = clock
        self._tracer = tracer
        self._stalls = StallDetector(stalled_after_us=stalled_after_us, now_us=clock.now_us())
        self.fetch_errors = FetchErrors()
        self._lock = threading.Lock()
        self._watched: dict[int, _UnitTimes] = {}
        self._completed_us = 0  # last completion of work
        self._is_rebalanced = False
        self._shortest_wait_us, self._has_backlog, self._minute_end_us = NEVER_US, False, 0
        self.clock_notes: tuple[str, ...] = ()
        # A lookup of labels takes longer than a count.
        self._consumed = cache(lambda topic: metrics.loop.records_consumed.labels(topic=topic))
        self._seconds = cache(
            lambda topic, step: metrics.loop.record_seconds.labels(topic=topic, step=step)
        )

    # The polling thread.

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Notes that these partitions are assigned to this member."""
        self._stalls.assigned(partitions, self._clock.now_us())
        for at in partitions:  # at 0, so that an alert sees the first error
            self._metrics.loop.fetch_errors.labels(topic=at.topic, partition=str(at.partition))
        self._metrics.loop.rebalances.labels(event="assigned").inc()
        self._is_rebalanced = True
        # What waited while nobody read comes now: it shows no clock.
        self._has_backlog, self._minute_end_us = True, self._clock.now_us() + MINUTE_US

    def revoked(
        self, partitions: frozenset[TopicPartition], unit_ids: Iterable[int], *, lost: bool
    ) -> None:
        """Notes that these partitions and their units are revoked."""
        self._stalls.revoked(partitions)
        self.fetch_errors.revoked(partitions)
        with self._lock:
            for unit_id in unit_ids:
                self._watched.pop(unit_id, None)
        for at in partitions:
            for gauge in (
                self._metrics.loop.lag_records,
                self._metrics.loop.partition_moved_seconds,
            ):
                gauge.remove(at.topic, str(at.partition))
        self._tracer.revoked(unit_ids, self._clock.now_us())
        self._metrics.loop.rebalances.labels(event="lost" if lost else "revoked").inc()
        self._is_rebalanced = True

    def poll_returned(self, started_us: int) -> None:
        """Notes a poll; one that served a rebalance delayed the retained partitions."""
        if self._is_rebalanced:
            self._is_rebalanced = False
            took_us = self._clock.now_us() - started_us
            self._metrics.loop.rebalance_seconds.observe(took_us / 1_000_000)

    def fetch_failed(self, at: TopicPartition, error: str, *, lasts: bool = False) -> None:
        """Notes that a fetch of this partition failed; see `FetchErrors.failed`."""
        self.fetch_errors.failed(at, error, self._clock.now_us(), lasts=lasts)
        self._metrics.loop.fetch_errors.labels(topic=at.topic, partition=str(at.partition)).inc()

    def taken(self, message: Message) -> None:
        """Notes an accepted record, before it is decoded."""
        source = message.source
        at = TopicPartition(source.topic, source.partition)
        self._stalls.took(at, message.written_us, self._clock.now_us())
        if not message.unreadable:  # else nothing was read
            self.fetch_errors.read(at)
        self._consumed(source.topic).inc()
        wait_us = message.received_us - message.written_us
        self._shortest_wait_us = min(self._shortest_wait_us, wait_us)
        self._seconds(source.topic, "kafka_wait").observe(max(0, wait_us) / 1_000_000)

    def accepted(self, unit: Unit[R]) -> Unit[R]:
        """Notes that a unit is about to be offered to the stage, for the first time or again.

        Returns the unit with the trace context of its outputs.
        """
        watched = self._watched.get(unit.id)
        if watched is None:
            traceparents = self._tracer.opened(unit)
            owed = unit.parts - len(unit.parts_done)
            watched = _UnitTimes(unit.source.topic, unit.message.received_us, owed, traceparents)
            with self._lock:
                self._watched[unit.id] = watched
        return (
            dataclasses.replace(unit, traceparents=watched.traceparents)
            if watched.traceparents
            else unit
        )

    def review(self, waiting: Mapping[TopicPartition, int]) -> str | None:
        """Sets the gauges of lag and progress; returns `StallDetector.stalled`."""
        now_us, lead_us = self._clock.now_us(), self._clock.host_lead_us()
        self._stalls.finished(self._completed_us)
        self._stalls.waits(waiting, now_us)
        for at, records in waiting.items():
            self._metrics.loop.lag_records.labels(topic=at.topic, partition=str(at.partition)).set(
                records
            )
        for at, moved_us in self._stalls.moved_us().items():
            gauge = self._metrics.loop.partition_moved_seconds.labels(
                topic=at.topic, partition=str(at.partition)
            )
            gauge.set((moved_us + lead_us) / 1_000_000)
        self._review_clock(now_us, is_waiting=any(waiting.values()))
        self._metrics.loop.lag_seconds.set(self._stalls.lag_us(now_us) / 1_000_000)
        self._metrics.loop.last_progress_seconds.set((self._stalls.last_us + lead_us) / 1_000_000)
        return self._stalls.stalled(now_us)

    def _review_clock(self, now_us: int, *, is_waiting: bool) -> None:
        """Judges the host's clock by the time stamps of records.

        A record from the future shows that it is behind. A minute without a backlog, in which even
        the shortest wait was long, shows that it is ahead.
        """
        self._has_backlog |= is_waiting
        wait_us, is_over = self._shortest_wait_us, now_us >= self._minute_end_us
        if wait_us < 0 or (is_over and wait_us < NEVER_US):
            ahead_s = 0.0 if wait_us > 0 and self._has_backlog else wait_us / 1_000_000
            self._metrics.loop.clock_behind_seconds.set(-ahead_s)
            how = "ahead of" if ahead_s > 0 else "behind"
            note = f"the host's clock is {abs(ahead_s):,.0f} s {how} the time stamps of records"
            if not self.clock_notes and abs(ahead_s) > CLOCK_OFF_S:
                log.warning(note, means=CLOCK_OFF)
            self.clock_notes = (f"{note}: {CLOCK_OFF}",) if abs(ahead_s) > CLOCK_OFF_S else ()
        if is_over:
            self._shortest_wait_us, self._has_backlog = NEVER_US, False
            self._minute_end_us = now_us + MINUTE_US

    # Any thread.

    def finished(self, done: Done) -> Done:
        """Notes finished work; returns it with trace headers in its outputs. Thread-safe."""
        now_us = self._clock.now_us()
        with self._lock:
            for unit_id, part in done.parts:
                watched = self._watched.get(unit_id)
                if watched is not None:
                    watched.finished_us[part] = now_us
                    self._observe(watched, "process", now_us - watched.received_us)
        return self._tracer.finished(done, now_us)

    def completed(self, done: Done) -> None:
        """Notes that the outputs of this work are committed. Thread-safe."""
        now_us = self._clock.now_us()
        with self._lock:
            self._completed_us = now_us
            for unit_id, part in done.parts:
                self._complete(unit_id, part, now_us)
        self._tracer.completed(done, now_us)

    # With the lock acquired.

    def _complete(self, unit_id: int, part: int, now_us: int) -> None:
        watched = self._watched.get(unit_id)
        if watched is None:
            return
        finished_us = watched.finished_us.pop(part, None)
        if finished_us is not None:
            self._observe(watched, "commit", now_us - finished_us)
        watched.owed -= 1
        if watched.owed <= 0:
            del self._watched[unit_id]

    def _observe(self, watched: _UnitTimes, step: str, took_us: int) -> None:
        self._seconds(watched.topic, step).observe(max(0, took_us) / 1_000_000)
