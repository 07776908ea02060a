"""What becomes of every record, from its arrival to the commit that ends it: the loop's eyes, for
metrics, traces, readiness.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from carpool.clock import Clock
from carpool.kafka.records import Message, TopicPartition
from carpool.loop.stage import Done, R, Unit
from carpool.loop.stall_detector import StallDetector
from carpool.loop.tracing.tracer import Tracer
from carpool.telemetry.metrics import Metrics


@dataclass(slots=True)
class _Watched:
    """A unit in flight: since when it is here, how many parts it owes, its trace, and when which
    part of it was finished.
    """

    topic: str
    received_us: int
    owed: int
    traceparents: tuple[str, ...]
    finished_us: dict[int, int] = field(default_factory=dict)


class WorkObserver:
    """Is told what happens and changes nothing, but for the trace headers of outputs. Never blocks.

    Thread-safe where a method says so; the others are the polling thread's. What it holds is
    bounded by the units in flight.
    """

    def __init__(
        self, *, metrics: Metrics, clock: Clock, tracer: Tracer, stalled_after_us: int
    ) -> None:
        """`stalled_after_us`: how long records may wait while nothing moves, before the service
        says that it stands still.
        """
        self._metrics = metrics
        self._clock = clock
        self._tracer = tracer
        self._progress = StallDetector(stalled_after_us=stalled_after_us, now_us=clock.now_us())
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._finished_us = 0  # when work was last finished for good
        self._is_polled = False
        # Looking up labels takes longer than counting; topics and steps are few.
        self._consumed = cache(lambda topic: metrics.loop.records_consumed.labels(topic=topic))
        self._seconds = cache(
            lambda topic, step: metrics.loop.record_seconds.labels(topic=topic, step=step)
        )

    # The polling thread.

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Says that these partitions are ours now."""
        self._progress.assigned(partitions, self._clock.now_us())
        self._metrics.loop.rebalances.labels(event="assigned").inc()

    def revoked(
        self, partitions: frozenset[TopicPartition], unit_ids: Iterable[int], *, lost: bool
    ) -> None:
        """Says that these partitions, and with them these units, are no longer ours."""
        self._progress.revoked(partitions)
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

    def rebalanced(self, started_us: int) -> None:
        """Says that a poll which began at `started_us` served a rebalance: for as long no retained
        partition went on.
        """
        self._metrics.loop.rebalance_seconds.observe(
            (self._clock.now_us() - started_us) / 1_000_000
        )

    def taken(self, message: Message) -> None:
        """Says that a record was taken in, whatever it turns out to be."""
        source = message.source
        self._progress.took(
            TopicPartition(source.topic, source.partition), source.timestamp_ms, message.received_us
        )
        self._consumed(source.topic).inc()
        if source.timestamp_ms:
            wait_us = max(0, message.received_us - source.timestamp_ms * 1_000)
            self._seconds(source.topic, "kafka_wait").observe(wait_us / 1_000_000)

    def accepted(self, unit: Unit[R]) -> Unit[R]:
        """Says that a unit is about to be offered to the stage, for the first time or again.

        Returns it with the trace context that its outputs go on.
        """
        watched = self._watched.get(unit.id)
        if watched is None:
            traceparents = self._tracer.opened(unit)
            owed = unit.parts - len(unit.parts_done)
            watched = _Watched(unit.source.topic, unit.message.received_us, owed, traceparents)
            self._is_polled = True
            with self._lock:
                self._watched[unit.id] = watched
        return (
            dataclasses.replace(unit, traceparents=watched.traceparents)
            if watched.traceparents
            else unit
        )

    def polled(self, started_us: int) -> None:
        """Says that a round of polls, which began at `started_us`, is over."""
        if self._is_polled:
            self._is_polled = False
            self._tracer.polled(started_us, self._clock.now_us())

    def review(self, waiting: Mapping[TopicPartition, int]) -> str | None:
        """Sets the gauges of lag and progress; returns what stands still, in words, or None."""
        now_us = self._clock.now_us()
        self._progress.finished(self._finished_us)
        self._progress.waits(waiting, now_us)
        for at, records in waiting.items():
            self._metrics.loop.lag_records.labels(topic=at.topic, partition=str(at.partition)).set(
                records
            )
        for at, moved_us in self._progress.moved_us().items():
            gauge = self._metrics.loop.partition_moved_seconds.labels(
                topic=at.topic, partition=str(at.partition)
            )
            gauge.set(moved_us / 1_000_000)
        self._metrics.loop.lag_seconds.set(self._progress.lag_us(now_us) / 1_000_000)
        self._metrics.loop.last_progress_seconds.set(self._progress.last_us / 1_000_000)
        return self._progress.stalled(now_us)

    # Any thread.

    def finished(self, done: Done) -> Done:
        """Says that a stage has finished work; returns it with the trace headers of its outputs
        set. Thread-safe.
        """
        now_us = self._clock.now_us()
        with self._lock:
            for unit_id, part in done.parts:
                watched = self._watched.get(unit_id)
                if watched is not None:
                    watched.finished_us[part] = now_us
                    self._observe(watched, "process", now_us - watched.received_us)
        return self._tracer.finished(done, now_us)

    def completed(self, done: Done) -> None:
        """Says that the outputs of this work are written for good. Thread-safe."""
        now_us = self._clock.now_us()
        with self._lock:
            self._finished_us = now_us
            for unit_id, part in done.parts:
                self._complete(unit_id, part, now_us)
        self._tracer.completed(done, now_us)

    def committed(self, started_us: int) -> None:
        """Says that what was completed since the last call was committed, by a commit that began at
        `started_us`. Thread-safe.
        """
        self._tracer.committed(started_us, self._clock.now_us())

    # With the lock held.

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

    def _observe(self, watched: _Watched, step: str, took_us: int) -> None:
        self._seconds(watched.topic, step).observe(max(0, took_us) / 1_000_000)
