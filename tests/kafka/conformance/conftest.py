"""The brokers that the suite runs over."""

from __future__ import annotations

import uuid

import pytest

from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from tests.kafka.conformance.harness import PARTITIONS, Broker, InMemory, Reached

KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)
PREFIX = "suite"
"""Of the topics at the brokers; the suite sees logical names only."""
CLASSIC = pytest.param("kafka, classic groups", marks=(pytest.mark.kafka, pytest.mark.long))


def make_broker(request: pytest.FixtureRequest) -> Broker:
    name = f"t-{uuid.uuid4().hex[:8]}"
    if request.param == "memory":
        return InMemory(name)
    if request.param == "embedded":
        address: str = request.getfixturevalue("embedded_bootstrap")
        return Reached(
            name,
            "embedded",
            KafkaSettings(
                bootstrap=address,
                prefix=PREFIX,
                partitions=PARTITIONS,
                librdkafka={"session.timeout.ms": 2_000},
            ),
        )
    server: KafkaServer = request.getfixturevalue("kafka_server")
    settings = KafkaSettings(
        bootstrap=server.bootstrap,
        prefix=PREFIX,
        partitions=PARTITIONS,
        request_timeout_ms=3_000,
        librdkafka={"session.timeout.ms": 2_000}
        | ({"group.protocol": "classic"} if "classic" in request.param else {}),
    )
    return Reached(name, "kafka", settings, server)


@pytest.fixture(params=["memory", "embedded", KAFKA])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Every kind of broker."""
    return make_broker(request)


@pytest.fixture(params=["memory", KAFKA])
def transactional_broker(request: pytest.FixtureRequest) -> Broker:
    """Every kind of broker that keeps transactions."""
    return make_broker(request)


@pytest.fixture(params=["memory", KAFKA, CLASSIC])
def group_broker(request: pytest.FixtureRequest) -> Broker:
    """Every kind of broker that keeps transactions, with every protocol for consumer groups."""
    return make_broker(request)
