"""Brokers for tests: embedded and real Kafka, started once a session or for one test. A plugin of
`tests/conftest.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.core.embedded_broker import EmbeddedBroker
from bench.reliability.fault_proxy import FaultProxy
from carpool.errors import ConfigError
from carpool.kafka.admin import create_topics
from carpool.kafka.embedded import find_broker_binary, free_port
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer, free_ports


@pytest.fixture(scope="session")
def embedded_bootstrap() -> Iterator[str]:
    """The address of an embedded broker."""
    try:
        find_broker_binary()
    except ConfigError as error:
        pytest.skip(str(error))
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A real Kafka broker; tests that use it are marked `kafka`."""
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka_server: KafkaServer) -> str:
    """The address of a real Kafka broker; tests that use it are marked `kafka`."""
    return kafka_server.bootstrap


@pytest.fixture(scope="session")
def fault_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    """A proxy before a real Kafka broker of its own. A test that sets a delay ends it."""
    ports = free_ports(advertised=free_port())
    with (
        KafkaServer(tmp_path_factory.mktemp("proxied") / "broker", ports=[ports]),
        FaultProxy(ports.advertised, ports.clients) as proxy,
    ):
        yield proxy


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of each kind of broker in turn."""
    address: str = request.getfixturevalue(f"{request.param}_bootstrap")
    return address


@pytest.fixture(
    params=[
        pytest.param("embedded", marks=pytest.mark.long),
        pytest.param("kafka", marks=pytest.mark.kafka),
    ]
)
def fresh_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a new broker with all topics, for one test of whole services.

    Without `--run-long` it is real Kafka only.
    """
    with (
        EmbeddedBroker()
        if request.param == "embedded"
        else KafkaServer(tmp_path / "kafka") as broker
    ):
        create_topics(KafkaSettings(bootstrap=broker.bootstrap))
        yield broker.bootstrap
