"""A question is answered over TLS, SASL, client certificates; a refusal says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from carpool.kafka.acls import ROLES, SERVICES, Acl, Role, acls_of
from carpool.kafka.admin import create_topics
from carpool.kafka.client_config import client_config
from carpool.kafka.deployment import check_deployment
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.settings import Secret
from cli.services import INPUTS
from schemas.topics import QUERIES, RETRIES, TOPICS, read_with
from tests.e2e.secure import PASSWORDS, PREFIX, ask, environment, mtls, scram, services, tls
from tests.e2e.support import MODEL
from tests.rig.secure_kafka import SecureKafkaServer
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

Connect = Callable[[SecureKafkaServer, str], KafkaSettings]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafkaServer]:
    """A secure broker; each role has exactly its documented rights."""
    users = PASSWORDS | {"nobody": "secret-of-nobody"}
    with SecureKafkaServer(tmp_path_factory.mktemp("secure"), users=users) as it:
        for role in ROLES:
            it.allow(role, acls_of(role, KafkaSettings(prefix=PREFIX)))
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


@pytest.mark.parametrize("connect", [tls, scram, mtls])
def test_a_question_is_answered_exactly_once_by_three_services(
    server: SecureKafkaServer, small_index: Path, tmp_path: Path, connect: Connect
) -> None:
    users = {service: connect(server, service) for service in SERVICES}
    with services(users, small_index, tmp_path) as stacks:
        assert ask(connect(server, "application")) == "ok"
        for service, stack in stacks.items():
            log = stack[service].log_file.read_text()
            assert "exactly_once" in log
            assert "secret-of" not in log
            assert "of-the-key" not in log


def variables(kafka: KafkaSettings, index: Path) -> dict[str, str]:
    environ = {name: it for name, it in os.environ.items() if not name.startswith("CARPOOL_")}
    return (
        environ
        | environment(kafka)
        | {
            "CARPOOL_KAFKA_REQUEST_TIMEOUT_MS": "3000",
            "CARPOOL_INDEX_DIR": str(index),
            "CARPOOL_EMBEDDING_MODEL": MODEL,
            "CARPOOL_HTTP_PORT": "0",
        }
    )


def run(kafka: KafkaSettings, index: Path, *command: str) -> str:
    """Runs a command that fails; returns the one line that it ends with."""
    done = subprocess.run(
        [sys.executable, "-m", "carpool", *command],
        env=variables(kafka, index),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert "secret-of" not in done.stderr + done.stdout
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def line_about_rights(kafka: KafkaSettings, index: Path, service: str) -> str:
    """Runs a service until it says which rights it lacks; then it ends, or is not ready."""
    with subprocess.Popen(
        [sys.executable, "-m", "carpool", service],
        env=variables(kafka, index),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        watch = threading.Timer(60, process.kill)
        watch.start()
        try:
            lines = (line for line in process.stdout if "carpool acls" in line)
            return next(lines, "nothing about rights within 60 seconds")
        finally:
            watch.cancel()
            process.kill()


COMMANDS = [("grouper",), ("topics", "check"), ("ask", "why?")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda it: it[0])
def test_a_wrong_password_is_one_line_that_names_the_setting(
    server: SecureKafkaServer, small_index: Path, command: tuple[str, ...]
) -> None:
    wrong = msgspec.structs.replace(scram(server, "grouper"), sasl_password=Secret("wrong"))
    said = run(wrong, small_index, *command)
    assert "refuse these credentials" in said
    assert "CARPOOL_KAFKA_SASL_PASSWORD" in said


@pytest.mark.parametrize("command", COMMANDS, ids=lambda it: it[0])
def test_an_expired_certificate_is_one_line_that_says_how_to_see_it(
    server: SecureKafkaServer, small_index: Path, command: tuple[str, ...]
) -> None:
    said = run(mtls(server, "grouper", expired=True), small_index, *command)
    assert "refuse the certificate of this client" in said
    assert "openssl x509 -noout -dates" in said


def test_a_topic_without_the_right_to_describe_it_is_not_called_missing(
    server: SecureKafkaServer, small_index: Path
) -> None:
    said = run(scram(server, "application"), small_index, "grouper")
    assert "cannot be seen" in said or "cannot be used" in said
    assert "allow" in said
    assert "does not exist" not in said


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

    def names(acl: Acl) -> bool:
        name = "DescribeConfigs on the cluster" if acl.resource == "CLUSTER" else acl.name
        return any(name in line for line in said() if line not in before)

    for acl in rights:
        if acl.resource in ("TOPIC", "CLUSTER"):
            with server.without(service, [acl]):
                wait_until(partial(names, acl), f"{service} says that it lacks {acl}")


@pytest.mark.parametrize(
    ("service", "missing"),
    [
        ("grouper", Acl("TRANSACTIONAL_ID", f"{PREFIX}-grouper-", "PREFIXED", "WRITE")),
        ("grouper", Acl("GROUP", f"{PREFIX}-grouper", "LITERAL", "READ")),
        ("searcher", Acl("TOPIC", f"{PREFIX}.{RETRIES.name}", "LITERAL", "WRITE")),
        ("generator", Acl("GROUP", f"{PREFIX}-generator", "LITERAL", "READ")),
        ("searcher", Acl("TRANSACTIONAL_ID", f"{PREFIX}-searcher-", "PREFIXED", "WRITE")),
    ],
    ids=lambda it: it if isinstance(it, str) else f"{it.resource}-{it.operation}".lower(),
)
def test_a_missing_right_is_one_line_that_names_the_command(
    server: SecureKafkaServer, small_index: Path, service: str, missing: Acl
) -> None:
    with server.without(service, [missing]):
        said = line_about_rights(scram(server, service), small_index, service)
    assert "carpool acls" in said
    assert missing.name.rstrip("-") in said


def test_librdkafka_settings_reach_every_client(server: SecureKafkaServer) -> None:
    kafka = msgspec.structs.replace(
        scram(server, "operator"), librdkafka={"socket": {"timeout": {"ms": 11_000}}}
    )
    assert client_config(kafka)["socket.timeout.ms"] == 11_000
    assert AdminClient(client_config(kafka)).list_topics(timeout=WAIT_S).brokers
