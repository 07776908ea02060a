"""What the observer measures of a record, from its arrival to its commit."""

from __future__ import annotations

import dataclasses
from typing import Any

from prometheus_client import CollectorRegistry

from carpool.kafka.records import Message, TopicPartition
from carpool.loop.stage import Done, Unit
from carpool.loop.tracing.tracer import Tracer
from carpool.loop.work_observer import WorkObserver
from carpool.telemetry.metrics import Metrics
from schemas.query import Query
from schemas.record import Source
from tests.clocks import HandClock

S = 1_000_000
AT = TopicPartition("rag.queries.v1", 0)


class Watched:
    """An observer with its clock and metrics."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self.clock = HandClock(step_us=1)
        self.clock.time_us = 1_000 * S
        self.metrics = Metrics(CollectorRegistry())
        self.observer = WorkObserver(
            metrics=self.metrics,
            clock=self.clock,
            tracer=tracer or Tracer(),
            stalled_after_us=30 * S,
        )
        self.observer.assigned([AT])

    def take(self, offset: int, *, waited_s: int = 0, parts: int = 1) -> Unit[Query]:
        now_us = self.clock.now_us()
        source = Source(
            topic=AT.topic,
            partition=0,
            offset=offset,
            timestamp_ms=(now_us - waited_s * S) // 1_000,
        )
        message = Message(source=source, key=None, value=b"q", headers=(), received_us=now_us)
        self.observer.taken(message)
        record = Query(query_id=f"q-{offset}", text="?")
        return self.observer.accepted(Unit(id=offset, record=record, message=message, parts=parts))

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"carpool_{name}", labels)

    def seconds(self, step: str) -> tuple[float | None, float | None]:
        labels = {"topic": AT.topic, "step": step}
        total = self.value("record_seconds_sum", **labels)
        return self.value("record_seconds_count", **labels), None if total is None else round(
            total, 3
        )


def test_each_step_of_a_record_is_timed() -> None:
    watched = Watched()
    unit = watched.take(0, waited_s=4)
    assert unit.traceparents == ()
    watched.clock.sleep(3 * S)
    done = Done(parts=((unit.id, 0),), outputs=())
    assert watched.observer.finished(done) is done
    watched.clock.sleep(2 * S)
    watched.observer.completed(done)
    assert watched.seconds("kafka_wait") == (1, 4.0)
    assert watched.seconds("process") == (1, 3.0)
    assert watched.seconds("commit") == (1, 2.0)


def test_a_record_of_several_parts_is_timed_until_the_last_part() -> None:
    watched = Watched()
    unit = watched.take(0, parts=2)
    for part in range(2):
        done = Done(parts=((unit.id, part),), outputs=())
        watched.observer.finished(done)
        watched.observer.completed(done)
    assert watched.seconds("process")[0] == watched.seconds("commit")[0] == 2


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


def test_the_review_returns_a_stall_and_sets_the_gauges() -> None:
    watched = Watched()
    unit = watched.take(0, waited_s=5)
    assert watched.observer.review({AT: 130}) is None
    assert watched.value("lag_seconds") is not None
    watched.clock.sleep(42 * S)
    stalled = watched.observer.review({AT: 130})
    assert stalled is not None
    assert "rag.queries.v1[0] has 130 records waiting" in stalled
    assert round(watched.value("lag_seconds") or 0) == 47
    watched.observer.completed(Done(parts=((unit.id, 0),), outputs=()))
    assert watched.observer.review({AT: 130}) is None
    assert round(watched.value("last_progress_timestamp_seconds") or 0) == 1_042
    assert (
        round(
            watched.value("partition_moved_timestamp_seconds", topic=AT.topic, partition="0") or 0
        )
        == 1_000
    )


class NumberedTracer(Tracer):
    """Gives each unit a trace of its own."""

    def __init__(self) -> None:
        self.opened_units = 0

    def opened(self, unit: Unit[Any]) -> tuple[str, ...]:
        self.opened_units += 1
        return (f"trace-{self.opened_units}",)


def test_a_unit_that_is_offered_again_keeps_its_trace() -> None:
    watched = Watched(NumberedTracer())
    unit = watched.take(0)
    assert unit.traceparents == ("trace-1",)
    assert watched.observer.accepted(dataclasses.replace(unit, traceparents=())) == unit
