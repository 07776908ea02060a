"""Settings of topics at real brokers, and brokers that cannot be reached."""

from __future__ import annotations

import msgspec
import pytest

from carpool.clock import SystemClock
from carpool.errors import RetryableError
from carpool.kafka.admin import create_topics, describe_topics
from carpool.kafka.librdkafka import LibrdkafkaConsumer
from carpool.kafka.settings import KafkaSettings
from schemas.topics import QUERIES
from tests.kafka.conformance.harness import Listener


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
