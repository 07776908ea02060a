"""Settings of topics at real brokers, and brokers that cannot be reached."""

from __future__ import annotations

import uuid

import pytest

from carpool.clock import SystemClock
from carpool.errors import RetryableError
from carpool.kafka.admin import create_topics, topic_config
from carpool.kafka.deployment import broker_facts
from carpool.kafka.librdkafka import LibrdkafkaConsumer, LibrdkafkaProducer, end_offsets
from carpool.kafka.raw_records import raw_partition
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings
from schemas.topics import QUERIES, TOPICS
from tests.kafka.conformance.harness import Listener, poll_until
from tests.waiting import WAIT_S


@pytest.mark.kafka
def test_topics_are_created_from_the_list_once(kafka_bootstrap: str) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap)
    create_topics(settings)
    assert create_topics(settings) == [], "making them again changes nothing"
    found = broker_facts(settings, TOPICS, "carpool-test", ()).topics
    for topic in TOPICS:
        config = found[topic.name].config
        assert config is not None and topic_config(topic).items() <= config.items()


def test_an_unreachable_broker_is_named_by_its_address() -> None:
    settings = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_ms=1_000)
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:1"):
        create_topics(settings)
    with pytest.raises(RetryableError, match="no broker answers"):
        LibrdkafkaConsumer(settings, "g", SystemClock()).subscribe("t", Listener())


@pytest.mark.kafka
def test_records_that_librdkafka_does_not_fetch_are_counted(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_offsets, "QUIET_S", 0)
    settings = KafkaSettings(bootstrap=kafka_bootstrap, prefix="quiet")
    create_topics(settings)
    listener, group = Listener(), f"g-{uuid.uuid4()}"
    member = LibrdkafkaConsumer(settings, group, SystemClock())
    member.subscribe(QUERIES.name, listener)
    try:
        poll_until(member, lambda: bool(listener.positions))
        assert sum(member.waiting().values()) == 0
        # As if it had stopped by itself.
        member._consumer.pause([raw_partition(settings, at) for at in listener.positions])
        producer = LibrdkafkaProducer(settings)
        for _ in range(2):
            assert producer.produce(
                Output(topic=QUERIES.name, key=b"k", value=b"{}"), lambda _: None
            )
        assert producer.close(WAIT_S) == 0
        poll_until(member, lambda: sum(member.waiting().values()) == 2)
    finally:
        member.close()
