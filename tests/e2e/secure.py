"""Shared by tests of secure brokers: users, how each connects, the services as processes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.core.stack import Stack
from carpool import Client
from carpool.kafka.acls import ROLES, SERVICES
from carpool.kafka.settings import KafkaSettings
from carpool.settings import Secret
from carpool.testing.llm_server import LlmServer
from tests.e2e.support import MODEL
from tests.rig.secure_kafka import SecureKafkaServer
from tests.waiting import WAIT_S

PREFIX = "secure"
"""The rights, too, are those of the names with the prefix."""
PASSWORDS = {role: f"secret-of-{role}" for role in ROLES}


def scram(server: SecureKafkaServer, user: str) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=server.sasl,
        prefix=PREFIX,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username=user,
        sasl_password=Secret(PASSWORDS[user]),
        ssl_ca_location=str(server.authority.certificate),
    )


def mtls(server: SecureKafkaServer, user: str, *, expired: bool = False) -> KafkaSettings:
    files = server.authority.sign(user, expired=expired, password="of-the-key")
    return KafkaSettings(
        bootstrap=server.mtls,
        prefix=PREFIX,
        security_protocol="SSL",
        ssl_ca_location=str(server.authority.certificate),
        ssl_key_password=Secret("of-the-key"),
        librdkafka={
            "ssl.certificate.location": str(files.certificate),
            "ssl.key.location": str(files.key),
        },
    )


def tls(server: SecureKafkaServer, _: str) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=server.tls,
        prefix=PREFIX,
        security_protocol="SSL",
        ssl_ca_location=str(server.authority.certificate),
    )


def environment(kafka: KafkaSettings) -> dict[str, str]:
    """The settings of `kafka` that connect, as variables."""
    values: dict[str, Any] = {
        "BOOTSTRAP": kafka.bootstrap,
        "PREFIX": kafka.prefix,
        "SECURITY_PROTOCOL": kafka.security_protocol,
        "SASL_MECHANISM": kafka.sasl_mechanism,
        "SASL_USERNAME": kafka.sasl_username,
        "SASL_PASSWORD": kafka.sasl_password.value,
        "SSL_CA_LOCATION": kafka.ssl_ca_location,
        "SSL_KEY_PASSWORD": kafka.ssl_key_password.value,
        "OAUTHBEARER_CLIENT_SECRET": kafka.oauthbearer_client_secret.value,
        "LIBRDKAFKA": json.dumps(kafka.librdkafka),
    }
    return {f"CARPOOL_KAFKA_{name}": value for name, value in values.items() if value}


@contextmanager
def services(
    users: Mapping[str, KafkaSettings], index: Path, folder: Path
) -> Iterator[dict[str, Stack]]:
    """Runs the three services, each as its own user, until the end of the context."""
    with LlmServer() as llm:
        stacks = {
            service: Stack(
                bootstrap=users[service].bootstrap,
                index_dir=index,
                work_dir=folder / service,
                services=(service,),
                settings={
                    "CARPOOL_EMBEDDING_MODEL": MODEL,
                    "CARPOOL_LLM_MODEL": llm.model,
                    "CARPOOL_KAFKA_DELIVERY": "exactly_once",
                    **environment(users[service]),
                },
                llm_url=llm.url,
            )
            for service in SERVICES
        }
        processes = [stack[service] for service, stack in stacks.items()]
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.wait_ready()
            yield stacks
        finally:
            for process in processes:
                process.stop()


def ask(kafka: KafkaSettings) -> str:
    """Asks one question and returns the status of its answer."""

    async def run() -> str:
        with patch.dict(os.environ, environment(kafka)):
            from_settings = Client.from_settings()
        async with from_settings as client:
            answer = await client.ask("what of the river glacier?", top_k=2, timeout_s=WAIT_S)
            assert answer.retrieved
            return answer.status

    return asyncio.run(run())
