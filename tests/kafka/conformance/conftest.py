"""The brokers that the suite runs over."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest

from carpool.kafka.client_config import EMBEDDED_FETCH_WAIT_MS
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
        quick = {"session.timeout.ms": 2_000, "fetch.wait.max.ms": EMBEDDED_FETCH_WAIT_MS}
        settings = KafkaSettings(
            bootstrap=request.getfixturevalue("embedded_bootstrap"),
            prefix=PREFIX,
            partitions=PARTITIONS,
            librdkafka=quick,
        )
        return Reached(name, "embedded", settings)
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
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Every kind of broker."""
    with closing(make_broker(request)) as made:
        yield made


@pytest.fixture(params=["memory", KAFKA])
def transactional_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Every kind of broker that keeps transactions."""
    with closing(make_broker(request)) as made:
        yield made


@pytest.fixture(params=["memory", KAFKA, CLASSIC])
def group_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Every kind of broker that keeps transactions, with every protocol for consumer groups."""
    with closing(make_broker(request)) as made:
        yield made
