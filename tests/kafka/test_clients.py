"""Brokers that cannot be reached, settings of topics at real brokers, and free ports."""

from __future__ import annotations

import pytest

from carpool.clock import SystemClock
from carpool.errors import ConfigError, RetryableError
from carpool.kafka import embedded
from carpool.kafka.admin import create_topics, topic_config
from carpool.kafka.deployment import broker_facts
from carpool.kafka.librdkafka import LibrdkafkaConsumer
from carpool.kafka.settings import KafkaSettings
from schemas.topics import TOPICS
from tests.kafka.conformance.harness import Listener


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


# ---- ports that nobody listens on yet are handed out once


def test_a_port_is_handed_out_once_before_anybody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    port = embedded.free_port()
    monkeypatch.setattr(embedded, "_PORTS", range(port, port + 1))
    with pytest.raises(ConfigError, match="no port"):
        embedded.free_port()
