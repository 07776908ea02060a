"""What the observer measures of a record, from its arrival to its commit."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from carpool.kafka.records import TopicPartition
from carpool.loop.stage import Done, Unit
from carpool.loop.work_observer import Tracer, WorkObserver
from carpool.telemetry.metrics import Metrics
from schemas.query import Query
from tests.clocks import HandClock
from tests.records import a_message, a_query, a_unit

S = 1_000_000
AT = TopicPartition("rag.queries.v1", 0)


class Watched:
    """An observer with its clock and metrics."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self.clock = HandClock(1_000 * S, step_us=1)
        self.metrics = Metrics()
        self.observer = WorkObserver(
            metrics=self.metrics,
            clock=self.clock,
            tracer=tracer or Tracer(),
            stalled_after_us=30 * S,
        )
        self.observer.assigned([AT])

    def take(self, offset: int, *, waited_s: int = 0, parts: int = 1) -> Unit[Query]:
        now_us = self.clock.now_us()
        sent_ms = (now_us - waited_s * S) // 1_000
        message = a_message(AT.topic, offset, timestamp_ms=sent_ms, received_us=now_us)
        self.observer.taken(message)
        return self.observer.accepted(a_unit(offset, a_query(), message, parts=parts))

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"carpool_{name}", labels)

    def seconds(self, step: str) -> tuple[float | None, float | None]:
        labels = {"topic": AT.topic, "step": step}
        total = self.value("record_seconds_sum", **labels)
        count = self.value("record_seconds_count", **labels)
        return count, None if total is None else round(total, 3)


def test_each_step_of_each_part_of_a_record_is_timed() -> None:
    watched = Watched()
    unit = watched.take(0, waited_s=4, parts=2)
    assert unit.traceparents == ()
    for part in range(2):
        watched.clock.sleep(3 * S)
        done = Done(parts=((unit.id, part),), outputs=())
        assert watched.observer.finished(done) is done
        watched.clock.sleep(2 * S)
        watched.observer.completed(done)
    assert watched.seconds("kafka_wait") == (1, 4.0)
    assert watched.seconds("process") == (2, 3.0 + 8.0)
    assert watched.seconds("commit") == (2, 4.0)


def test_revoked_partitions_lose_their_units_and_gauges() -> None:
    watched = Watched()
    unit = watched.take(0)
    watched.observer.review({AT: 3})
    assert watched.value("lag_records", topic=AT.topic, partition="0") == 3
    watched.observer.revoked(frozenset({AT}), frozenset({unit.id}), lost=True)
    assert watched.value("lag_records", topic=AT.topic, partition="0") is None
    assert watched.value("partition_moved_timestamp_seconds", topic=AT.topic, partition="0") is None
    assert watched.value("rebalances_total", event="lost") == 1
    late = Done(parts=((unit.id, 0),), outputs=())
    watched.observer.finished(late)
    watched.observer.completed(late)
    assert watched.seconds("process") == watched.seconds("commit") == (None, None)


def test_the_review_sets_the_gauges_of_lag_and_progress() -> None:
    watched = Watched()
    unit = watched.take(0, waited_s=5)
    watched.clock.sleep(42 * S)
    watched.observer.review({AT: 130})
    assert round(watched.value("lag_seconds") or 0) == 47
    watched.observer.completed(Done(parts=((unit.id, 0),), outputs=()))
    watched.observer.review({AT: 130})
    partition = {"topic": AT.topic, "partition": "0"}
    assert round(watched.value("last_progress_timestamp_seconds") or 0) == 1_042
    assert round(watched.value("partition_moved_timestamp_seconds", **partition) or 0) == 1_000


class NumberedTracer(Tracer):
    """Gives each unit a trace of its own."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)

    def opened(self, unit: Unit[Any]) -> tuple[str, ...]:
        return (f"trace-{next(self.numbers)}",)


def test_a_unit_that_is_offered_again_keeps_its_trace() -> None:
    watched = Watched(NumberedTracer())
    unit = watched.take(0)
    assert unit.traceparents == ("trace-1",)
    assert watched.observer.accepted(dataclasses.replace(unit, traceparents=())) == unit
