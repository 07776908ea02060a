"""The secure test broker: who may connect by which listener, and who is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from carpool.kafka.acls import Acl
from carpool.testing.secure_kafka import SecureKafkaServer
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafkaServer]:
    with SecureKafkaServer(tmp_path_factory.mktemp("secure"), users={"alice": "secret-a"}) as it:
        it.allow("alice", [Acl("TOPIC", "t", "LITERAL", "DESCRIBE")])
        yield it


def sasl(server: SecureKafkaServer, mechanism: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.sasl,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(server.authority.certificate),
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


def mtls(server: SecureKafkaServer, *, expired: bool) -> dict[str, Any]:
    files = server.authority.sign("bob", expired=expired)
    return {
        "bootstrap.servers": server.mtls,
        "security.protocol": "SSL",
        "ssl.ca.location": str(server.authority.certificate),
        "ssl.certificate.location": str(files.certificate),
        "ssl.key.location": str(files.key),
    }


def brokers(config: dict[str, Any]) -> int:
    return len(AdminClient(config | {"log_level": 0}).list_topics(timeout=WAIT_S).brokers)


def refusal(config: dict[str, Any]) -> KafkaError:
    """The first error that is no retry."""
    errors: list[KafkaError] = []
    producer = Producer(config | {"error_cb": errors.append, "log_level": 0})
    while not errors:
        producer.poll(0.1)
    return errors[0]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_user_connects_with_the_password_and_not_with_another(
    server: SecureKafkaServer, mechanism: str
) -> None:
    assert brokers(sasl(server, mechanism, "secret-a")) == 1
    assert refusal(sasl(server, mechanism, "wrong")).code() == KafkaError._AUTHENTICATION


def test_an_unsecured_token_connects(server: SecureKafkaServer) -> None:
    config = sasl(server, "OAUTHBEARER", "") | {
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
        "sasl.oauthbearer.config": "principal=alice",
    }
    del config["sasl.username"], config["sasl.password"]
    assert brokers(config) == 1


def test_a_client_certificate_connects_and_an_expired_one_does_not(
    server: SecureKafkaServer,
) -> None:
    assert brokers(mtls(server, expired=False)) == 1
    # Java tells no more than this of an expired certificate.
    assert "alert certificate" in refusal(mtls(server, expired=True)).str()


def test_tls_needs_the_authority(server: SecureKafkaServer) -> None:
    config = {"bootstrap.servers": server.tls, "security.protocol": "SSL"}
    assert brokers(config | {"ssl.ca.location": str(server.authority.certificate)}) == 1
    assert "certificate verify failed" in refusal(config).str()


def test_rights_are_what_was_given(server: SecureKafkaServer) -> None:
    admin = AdminClient(sasl(server, "PLAIN", "secret-a") | {"log_level": 0})
    assert admin.list_topics("t", timeout=WAIT_S).topics["t"].error.code() == (
        KafkaError.UNKNOWN_TOPIC_OR_PART
    )
    assert admin.list_topics("u", timeout=WAIT_S).topics["u"].error.code() == (
        KafkaError.TOPIC_AUTHORIZATION_FAILED
    )
