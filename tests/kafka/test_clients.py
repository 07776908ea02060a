"""Clients of real brokers: limits and settings of topics, unreachable brokers."""

from __future__ import annotations

import msgspec
import pytest

from carpool.clock import SystemClock
from carpool.errors import AbortedError, CarpoolError, DeploymentError, RetryableError
from carpool.kafka.admin import create_topics, describe_topics
from carpool.kafka.librdkafka import (
    LibrdkafkaConsumer,
    LibrdkafkaProducer,
    LibrdkafkaTransactionalProducer,
)
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings
from schemas.topics import QUERIES
from tests.kafka.conformance.harness import Listener, insist
from tests.waiting import WAIT_S

TRIES_MAX = 3


@pytest.mark.kafka
def test_a_record_larger_than_its_topic_is_a_deployment_error(kafka_bootstrap: str) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap)
    create_topics(settings)
    producer, reports = LibrdkafkaProducer(settings), list[CarpoolError | None]()
    producer.produce(Output(topic=QUERIES.name, key=None, value=bytes(2_000_000)), reports.append)
    producer.close(WAIT_S)
    assert isinstance(reports[0], DeploymentError)


@pytest.mark.kafka
def test_a_transaction_with_a_record_larger_than_its_topic_is_not_retried(
    kafka_bootstrap: str,
) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap)
    create_topics(settings)
    producer = LibrdkafkaTransactionalProducer(settings, "too-large")
    insist(producer.start)
    for size_bytes in (2_000_000, 200_000_000):
        producer.begin()
        with pytest.raises(DeploymentError, match=QUERIES.name):
            producer.produce(Output(topic=QUERIES.name, key=None, value=bytes(size_bytes)))
            insist(producer.commit)
        insist(producer.abort)
    for _ in range(
        TRIES_MAX
    ):  # librdkafka may fail one more transaction for the records that it left out
        producer.begin()
        try:
            producer.produce(Output(topic=QUERIES.name, key=None, value=b"small enough"))
            insist(producer.commit)
            break
        except AbortedError:
            insist(producer.abort)
    else:
        raise AssertionError("no later transaction went through")
    producer.close()


@pytest.mark.kafka
def test_topics_are_created_from_the_list_and_differences_are_named(kafka_bootstrap: str) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap)
    create_topics(settings)
    assert create_topics(settings) == [], "making them again changes nothing"
    states = describe_topics(settings)
    assert [state.drift for state in states] == [()] * len(states)
    wrong = msgspec.structs.replace(QUERIES, retention_ms=5, max_message_bytes=7)
    (state,) = describe_topics(settings, (wrong,))
    assert state.drift == (
        "max.message.bytes is 1048576, not 7",
        "retention.ms is 604800000, not 5",
    )


def test_an_unreachable_broker_is_named_by_its_address() -> None:
    settings = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_ms=1_000)
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:1"):
        create_topics(settings)
    with pytest.raises(RetryableError, match="no broker answers"):
        LibrdkafkaConsumer(settings, "g", SystemClock()).subscribe("t", Listener())
