"""Brokers for tests: embedded and real Kafka, each started once a session. A plugin of
`tests/conftest.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from carpool.errors import ConfigError
from carpool.kafka.embedded import EmbeddedBroker, find_broker_binary, free_port
from carpool.testing.fault_proxy import FaultProxy
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
