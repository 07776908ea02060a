"""Each right of a running service is taken away for seconds and given back: it goes on by itself.

Nothing is lost or answered twice, no process ends, and meanwhile the log or `/readyz` names the
right and what it is for.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.core.stack import ServiceProcess, Stack
from carpool.kafka.acls import SERVICES, Acl, Role, acls_of
from carpool.testing.llm_server import LlmServer
from schemas.topics import ANSWERS, DOCUMENTS, QUERIES, QUERIES_BATCH
from tests.e2e import test_secure_brokers as secure
from tests.e2e.support import MODEL, Publisher, read_to_end
from tests.rig.secure_kafka import SecureKafkaServer
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.long]

server = secure.server
IMPATIENT = """
from carpool import run_service
from cli.main import main
run_service.WATCH_S = 1.0
main()
"""
"""A service that looks at its topics often."""
REFRESHED = {"topic.metadata.refresh.interval.ms": 1_000}
"""So does its client, which otherwise takes minutes to see that it may not describe a topic."""
AWAY_S = 3.0


class Running:
    """The services, each with its own user, and all questions that they were asked."""

    def __init__(self, server: SecureKafkaServer, index: Path, folder: Path, llm: LlmServer):
        self.bootstrap = server.bootstrap
        self._publisher = Publisher(server.bootstrap)
        self.asked: list[str] = []
        settings = {"CARPOOL_EMBEDDING_MODEL": MODEL, "CARPOOL_LLM_MODEL": llm.model}
        self.services: dict[str, ServiceProcess] = {
            service: Stack(
                bootstrap=server.sasl,
                index_dir=index,
                work_dir=folder,
                services=(service,),
                settings=settings
                | secure.environment(secure.scram(server, service))
                | {"CARPOOL_KAFKA_LIBRDKAFKA": json.dumps(REFRESHED)},
                llm_url=llm.url,
                commands={service: (sys.executable, "-c", IMPATIENT, service)},
            )[service]
            for service in SERVICES
        }

    def ask(self) -> None:
        """A question of each class, a workflow, a document, and dead letters of both."""
        documents = f"{secure.PREFIX}.{DOCUMENTS.name}"
        for value in (b"text", b"{"):
            assert self._publisher.send(documents, value, key="document") is None
        for topic, more in (
            (QUERIES, {}),
            (QUERIES_BATCH, {}),
            (QUERIES, {"workflow": "hyde"}),
            (QUERIES, {"top_k": -5}),
        ):
            self.asked.append(f"q-{len(self.asked)}")
            body = {"query_id": self.asked[-1], "text": "what of the river glacier?", **more}
            name = f"{secure.PREFIX}.{topic.name}"
            assert self._publisher.send(name, json.dumps(body).encode()) is None

    def answered(self) -> Counter[str]:
        records = read_to_end(self.bootstrap, f"{secure.PREFIX}.{ANSWERS.name}")
        return Counter(each.body["query_id"] for each in records)

    def is_well(self) -> bool:
        return set(self.asked) <= set(self.answered()) and all(
            each.is_up() for each in self.services.values()
        )


@pytest.fixture(scope="module")
def running(
    server: SecureKafkaServer, small_index: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    with LlmServer() as llm, ExitStack() as ending:
        found = Running(server, small_index, tmp_path_factory.mktemp("running"), llm)
        for process in found.services.values():
            ending.callback(process.stop)
            process.start()
        for process in found.services.values():
            process.wait_ready()
        yield found


def words(acl: Acl) -> tuple[str, str]:
    """Where and what: the name at the brokers, and the operation as `kafka-acls` calls it."""
    name = "the cluster" if acl.resource == "CLUSTER" else acl.name.rstrip("-")
    return name, acl.operation.title().replace("_", "")


def said(process: ServiceProcess, acl: Acl, since: int) -> tuple[str, str]:
    """The first line of the log, and of `/readyz`, that names the right; empty: none does."""
    name, operation = words(acl)
    log = process.log_file.read_text(errors="replace")[since:].splitlines()
    _, page = process.page("/readyz")
    lines = [log, json.loads(page).get("missing", []) if page.startswith("{") else []]
    named = re.compile(rf"{re.escape(name)}(?![\w.])")  # and not its dead letters
    first = (
        next((line for line in each if named.search(line) and f"{operation} " in f"{line} "), "")
        for each in lines
    )
    in_log, in_page = first
    return in_log, in_page


@pytest.mark.parametrize("service", SERVICES)
def test_each_right_of_a_running_service_comes_back_without_a_restart(
    server: SecureKafkaServer, running: Running, service: Role
) -> None:
    process, rows, wrong = running.services[service], list[str](), list[str]()
    pids = {name: each.pid for name, each in running.services.items()}
    for acl in acls_of(service, secure.scram(server, service)):
        since = len(process.log_file.read_text(errors="replace"))
        began_s = time.monotonic()
        in_log = in_page = ""
        with server.without(service, [acl], with_implied=True):
            running.ask()
            while time.monotonic() < began_s + AWAY_S or not (
                in_log or in_page or time.monotonic() > began_s + WAIT_S / 4
            ):
                line, reason = said(process, acl, since)
                in_log, in_page = in_log or line, in_page or reason
                time.sleep(0.2)
        back_s = time.monotonic()
        running.ask()
        label = f"{service:9} {' '.join(words(acl)[::-1])}"
        wait_until(running.is_well, lambda label=label: f"{label}: is back", every_s=0.5)
        rows.append(
            f"{label:62} {'yes' if in_log else 'no':4} {'yes' if in_page else 'no':4}"
            f"{time.monotonic() - back_s:5.1f}"
        )
        print(rows[-1], flush=True)
        if not (in_log or in_page):
            wrong.append(rows[-1])
    print("\nright taken away, named in the log, on /readyz, seconds until all is well")
    print("\n".join(rows))
    assert not wrong, "named nowhere:\n" + "\n".join(wrong)
    assert set(running.answered().values()) == {1}, "nothing is answered twice"
    assert {name: each.pid for name, each in running.services.items()} == pids
    assert all(each.is_running for each in running.services.values())
