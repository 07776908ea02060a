"""Records in paused partitions are counted by asking the brokers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.clients import Position
from carpool.kafka.librdkafka import LibrdkafkaConsumer
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from schemas.topics import RETRIEVALS
from tests.kafka.conformance.harness import Listener, poll_until
from tests.waiting import WAIT_S

AT = TopicPartition(RETRIEVALS.name, 0)


def write(settings: KafkaSettings, count: int) -> None:
    """Writes in one transaction, as the services do: a marker comes after the records."""
    producer = Producer(
        {"bootstrap.servers": settings.bootstrap, "transactional.id": f"test-{uuid.uuid4()}"}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(settings.broker_topic(AT.topic), value=b"v", partition=AT.partition)
    producer.commit_transaction(WAIT_S)


def polled(consumer: LibrdkafkaConsumer, until: Callable[[], bool]) -> int:
    """Polls until `until`; returns the records that came."""
    return len(poll_until(consumer, until))


@pytest.mark.slow
@pytest.mark.kafka
def test_records_that_arrive_while_paused_are_counted_and_passed_markers_are_not(
    kafka_bootstrap: str,
) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap, prefix="lag")
    create_topics(settings)
    write(settings, 3)
    listener, group = Listener(), f"lag-{uuid.uuid4()}"
    consumer = LibrdkafkaConsumer(settings, group, SystemClock())
    consumer.subscribe(AT.topic, listener)
    try:
        # The poll that assigns the partition may return a record.
        early = polled(consumer, lambda: AT in listener.positions)
        consumer.pause(frozenset({AT.topic}))
        polled(consumer, lambda: consumer.waiting()[AT] >= 3 - early)  # as while a model loads
        consumer.pause(frozenset())
        assert (
            early + polled(consumer, lambda: consumer.waiting()[AT] == 0 and AT in consumer._at_end)
            >= 3
        )
        consumer.pause(frozenset({AT.topic}))
        until_s = time.monotonic() + 3  # the brokers are asked meanwhile
        polled(consumer, lambda: time.monotonic() > until_s)
        assert consumer.waiting()[AT] == 0
        write(settings, 5)
        # 6 with the marker, which cannot be distinguished from a record.
        polled(consumer, lambda: consumer.waiting()[AT] in (5, 6))
        consumer.pause(frozenset())
        assert polled(consumer, lambda: consumer.waiting()[AT] == 0 and AT in consumer._at_end) == 5
        consumer.commit_now({AT: Position(consumer._passed[AT], "")})
    finally:
        consumer.close()
    again = LibrdkafkaConsumer(settings, group, SystemClock())
    listener.positions.clear()
    again.subscribe(AT.topic, listener)
    try:
        polled(again, lambda: AT in listener.positions)
        again.pause(frozenset({AT.topic}))
        until_s = time.monotonic() + 3
        polled(again, lambda: time.monotonic() > until_s)
        assert again.waiting()[AT] == 0, (
            "counted from what is committed, not from the beginning of the log"
        )
    finally:
        again.close()
