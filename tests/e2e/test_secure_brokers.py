"""A question is answered by users with the documented rights; clients connect by each mechanism; a
refusal says what to do.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import msgspec
import pytest
from confluent_kafka import KafkaException

from bench.core.stack import Stack
from carpool import Client
from carpool.errors import ConfigError
from carpool.guard import GuardedProcess
from carpool.kafka.acls import ROLES, SERVICES, Acl, Operation, Role, acls_of
from carpool.kafka.admin import create_topics
from carpool.kafka.cluster import cluster_metadata, quiet_admin
from carpool.kafka.coordinator import CoordinatorClient
from carpool.kafka.deployment import check_deployment
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.oauth_tokens import unsecured_token
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.settings import Secret
from cli.services import INPUTS
from schemas.topics import QUERIES, TOPICS, read_with
from tests.cli.support import carpool
from tests.e2e.support import MODEL
from tests.kafka.conformance.harness import insist
from tests.rig.secure_kafka import SecureKafkaServer
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PREFIX = "secure"
"""The rights, too, are those of the names with the prefix."""
PASSWORDS = {role: f"secret-of-{role}" for role in ROLES}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafkaServer]:
    """A secure broker; each role has exactly its documented rights."""
    with SecureKafkaServer(tmp_path_factory.mktemp("secure"), users=PASSWORDS) as it:
        at = f"--bootstrap {it.bootstrap} --set kafka.request_timeout_ms=180000"
        given = carpool(f"acls --apply {at} --set kafka.prefix={PREFIX}")
        assert given.code == 0, given.stderr
        create_topics(scram(it, "operator"))
        for service in SERVICES:  # makes the brokers' own topic of offsets
            _wait_for_coordinator(scram(it, service), f"{PREFIX}-{service}")
        yield it


def _wait_for_coordinator(kafka: KafkaSettings, group: str) -> None:
    def answers() -> bool:
        try:
            committed_so_far(kafka, group, [TopicPartition(QUERIES.name, 0)])
        except KafkaException:
            return False
        return True

    wait_until(answers, f"the coordinator of {group} answers", every_s=0.2)


def scram(server: SecureKafkaServer, user: str, mechanism: str = "SCRAM-SHA-512") -> KafkaSettings:
    return KafkaSettings(
        bootstrap=server.sasl,
        prefix=PREFIX,
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_username=user,
        sasl_password=Secret(PASSWORDS[user]),
        ssl_ca_location=str(server.authority.certificate),
    )


def tls(server: SecureKafkaServer) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=server.tls,
        prefix=PREFIX,
        security_protocol="SSL",
        ssl_ca_location=str(server.authority.certificate),
    )


def mtls(server: SecureKafkaServer, user: str, *, expired: bool = False) -> KafkaSettings:
    files = server.authority.sign(user, expired=expired, password="of-the-key")
    return msgspec.structs.replace(
        tls(server),
        bootstrap=server.mtls,
        ssl_key_password=Secret("of-the-key"),
        librdkafka={
            "ssl.certificate.location": str(files.certificate),
            "ssl.key.location": str(files.key),
        },
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
        "LIBRDKAFKA": json.dumps(kafka.librdkafka),
    }
    return {f"CARPOOL_KAFKA_{name}": value for name, value in values.items() if value}


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


def test_a_question_is_answered_exactly_once_by_three_services_each_with_its_own_rights(
    server: SecureKafkaServer, small_index: Path, tmp_path: Path
) -> None:
    settings = {
        "CARPOOL_EMBEDDING_MODEL": MODEL,
        "CARPOOL_LLM_ENGINE": "none",
        "CARPOOL_KAFKA_DELIVERY": "exactly_once",
    }
    with ExitStack() as running:
        processes = [
            Stack(
                bootstrap=server.sasl,
                index_dir=small_index,
                work_dir=tmp_path,
                services=(service,),
                settings=settings | environment(scram(server, service)),
            )[service]
            for service in SERVICES
        ]
        for process in processes:
            running.callback(process.stop)
            process.start()
        assert ask(scram(server, "application")) == "ok"
        for process in processes:
            wait_until(lambda log=process.log_file: "exactly_once" in log.read_text())
            assert "secret-of" not in process.log_file.read_text()


class TokenEndpoint(BaseHTTPRequestHandler):
    """Gives unsecured tokens to the client `operator` with its secret."""

    def do_POST(self) -> None:
        wanted = base64.b64encode(b"operator:s3cret").decode()
        is_known = self.headers["Authorization"] == f"Basic {wanted}"
        token, _ = unsecured_token({"principal": "operator"})
        body = json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": 3600})
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode() if is_known else b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def token_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), TokenEndpoint) as endpoint:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{endpoint.server_address[1]}/token"
        endpoint.shutdown()


def by_token(server: SecureKafkaServer, token_source: dict[str, str]) -> KafkaSettings:
    return msgspec.structs.replace(
        tls(server),
        bootstrap=server.sasl,
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        librdkafka=token_source,
        oauthbearer_client_secret=Secret("s3cret" if "method" in str(token_source) else ""),
    )


@pytest.mark.parametrize(
    "mechanism", ["TLS", "client certificate", "PLAIN", "SCRAM-SHA-512", "unsecured", "oidc"]
)
def test_both_clients_connect_by_each_mechanism(
    server: SecureKafkaServer, token_url: str, mechanism: str
) -> None:
    match mechanism:
        case "TLS":
            settings = tls(server)
        case "client certificate":
            settings = mtls(server, "operator")
        case "unsecured":
            source = {
                "enable.sasl.oauthbearer.unsecure.jwt": "true",
                "sasl.oauthbearer.config": "principal=operator",
            }
            settings = by_token(server, source)
        case "oidc":
            source = {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "operator",
                "sasl.oauthbearer.token.endpoint.url": token_url,
            }
            settings = by_token(server, source)
        case _:
            settings = scram(server, "operator", mechanism)
    assert not settings.check()
    assert cluster_metadata(quiet_admin(settings), settings, 20).brokers
    coordinators = CoordinatorClient(settings)
    try:  # the broker makes its own topic of transactions first
        assert insist(lambda: coordinators.unfinished([settings.group_of("dlq")])) == {}
    finally:
        coordinators.close()


def test_refused_credentials_and_certificates_are_one_line_that_says_what_to_do(
    server: SecureKafkaServer,
) -> None:
    wrong = msgspec.structs.replace(scram(server, "grouper"), sasl_password=Secret("wrong"))
    with pytest.raises(ConfigError, match=r"refuse these credentials.*KAFKA_SASL_PASSWORD"):
        cluster_metadata(quiet_admin(wrong), wrong, 3)
    expired = mtls(server, "grouper", expired=True)
    with pytest.raises(ConfigError, match=r"refuse the certificate of this client.*openssl x509"):
        cluster_metadata(quiet_admin(expired), expired, 3)
    unknown = msgspec.structs.replace(tls(server), ssl_ca_location="")
    with pytest.raises(ConfigError, match=r"cannot be trusted.*ssl_ca_location"):
        cluster_metadata(quiet_admin(unknown), unknown, 3)


def test_what_these_credentials_cannot_see_is_not_called_missing(server: SecureKafkaServer) -> None:
    kafka = msgspec.structs.replace(scram(server, "application"), request_timeout_ms=2_000)
    found = check_deployment(kafka, "auto", TOPICS, group=kafka.group_of("grouper"), inputs=())
    hidden = [each for each in found.problems if f"{PREFIX}.{QUERIES.name}.dlq" in each]
    assert len(hidden) == 1
    assert "cannot be seen" in hidden[0] and "allow Describe" in hidden[0]


@pytest.mark.parametrize("service", SERVICES)
def test_each_right_to_look_and_on_records_that_is_taken_away_is_said_at_start(
    server: SecureKafkaServer, service: Role
) -> None:
    kafka = scram(server, service)
    rights = acls_of(service, kafka)
    inputs = [topic.name for topic in read_with(INPUTS[service])]

    def said() -> list[str]:
        group = kafka.group_of(service)
        found = check_deployment(kafka, "auto", TOPICS, group=group, inputs=inputs, service=service)
        return [*found.problems, *found.warnings]

    before = said()

    def unnamed(missing: list[Acl]) -> list[Acl]:
        lines = [line for line in said() if line not in before]
        cluster = "DescribeConfigs on the cluster"
        names = [(acl, cluster if acl.resource == "CLUSTER" else acl.name) for acl in missing]
        return [acl for acl, name in names if not any(name in line for line in lines)]

    of_topics = [acl for acl in rights if acl.resource in ("TOPIC", "CLUSTER")]
    for operation in sorted({acl.operation for acl in of_topics}):
        missing = [acl for acl in of_topics if acl.operation == operation]
        with server.without(service, missing):
            wait_until(lambda missing=missing: not unnamed(missing), f"{service}: {missing}")


LACKING = [
    ("application", "batch list", "READ batches.v1", "Read on topic secure.rag.batches.v1)"),
    ("application", "publish who?", "WRITE queries.v1", "Write on topic secure.rag.queries.v1)"),
    ("application", "cancel q", "WRITE cancels.v1", "Write on topic secure.rag.cancels.v1)"),
    ("application", "ask who? --timeout 3", "READ answers.v1", "Read on topic secure.rag.answers"),
    ("application", "topics create --set kafka.prefix=other", "", "Create on topic other."),
    ("operator", "dlq list", "READ queries.v1.dlq", "Read on topic secure.rag.queries.v1.dlq)"),
    ("operator", "groups skip grouper rag.queries.v1/0/0 -y", "DESCRIBE", "Read on group secure-"),
    ("operator", "status", "DESCRIBE", "Describe on group secure-grouper)"),
    ("operator", "acls --apply", "", "Alter on the cluster)"),
]
"""User, command, the right that is taken away (on a topic, or on all groups), and what is said."""


@pytest.mark.parametrize(("user", "line", "taken", "says"), LACKING)
def test_a_command_names_the_right_that_it_lacks(
    server: SecureKafkaServer, user: str, line: str, taken: str, says: str
) -> None:
    operation, _, topic = taken.partition(" ")
    name = f"{PREFIX}.rag.{topic}" if topic else f"{PREFIX}-"
    of_groups: Acl = Acl("GROUP", name, "PREFIXED", cast(Operation, operation))
    missing = replace(of_groups, resource="TOPIC", pattern="LITERAL") if topic else of_groups
    settings = environment(scram(server, user)) | {"CARPOOL_KAFKA_REQUEST_TIMEOUT_MS": "5000"}
    without = server.without(user, [missing]) if taken else nullcontext()
    with patch.dict(os.environ, settings), without:

        def names_it() -> bool:
            ended = carpool(line)
            return ended.code != 0 and says in " ".join((ended.stderr + ended.stdout).split())

        wait_until(names_it, lambda: str(carpool(line)), every_s=0.5)


@pytest.mark.parametrize(
    "missing",
    [
        Acl("TRANSACTIONAL_ID", f"{PREFIX}-searcher-", "PREFIXED", "WRITE"),
        Acl("GROUP", f"{PREFIX}-searcher", "LITERAL", "READ"),
    ],
    ids=["transactional id", "group"],
)
def test_without_a_right_of_a_member_a_service_names_the_command(
    server: SecureKafkaServer, small_index: Path, missing: Acl
) -> None:
    """It ends then, or is not ready."""
    environ = {name: it for name, it in os.environ.items() if not name.startswith("CARPOOL_")}
    ours = {"CARPOOL_INDEX_DIR": str(small_index), "CARPOOL_HTTP_PORT": "0"}
    with (
        server.without("searcher", [missing]),
        GuardedProcess[str](
            [sys.executable, "-m", "carpool", "searcher"],
            env=environ | environment(scram(server, "searcher")) | ours,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        watch = threading.Timer(WAIT_S, process.kill)
        watch.start()
        try:
            lines: list[str] = []
            while not lines or (lines[-1] and "carpool acls" not in lines[-1]):
                lines.append(process.stdout.readline())
        finally:
            watch.cancel()
            process.kill()
    assert missing.name.rstrip("-") in lines[-1], lines
