"""`carpool status` on real brokers: a paused member is found, a service that works is not called
stuck.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.core.stack import ServiceProcess, Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from schemas.topics import QUERIES
from tests.e2e.support import Publisher, build_index, quick_settings
from tests.waiting import wait_until

PREFIX = "looked-at"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(tmp_path_factory.mktemp("index"), documents=100, nlist=4)


@pytest.fixture
def grouper(kafka_bootstrap: str, index: Path, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A grouper on a real broker."""
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, prefix=PREFIX)
    create_topics(kafka)
    settings = quick_settings() | {"CARPOOL_KAFKA_PREFIX": PREFIX}
    with Stack(
        bootstrap=kafka_bootstrap,
        index_dir=index,
        work_dir=tmp_path,
        services=("grouper",),
        settings=settings,
    ) as stack:
        stack["grouper"].wait_ready()
        try:
            yield stack["grouper"]
        finally:
            os.kill(stack["grouper"].pid, signal.SIGCONT)


def status(bootstrap: str, process: ServiceProcess) -> tuple[int, dict[str, Any]]:
    """The exit status, and what it says in JSON."""
    command = [
        sys.executable,
        "-m",
        "carpool",
        "status",
        "--bootstrap",
        bootstrap,
        "--url",
        f"grouper=127.0.0.1:{process.port}",
    ]
    environ = os.environ | {"CARPOOL_KAFKA_PREFIX": PREFIX}
    found = subprocess.run(
        [*command, "--json"], env=environ, capture_output=True, text=True, check=False
    )
    assert found.stdout, found.stderr
    return found.returncode, json.loads(found.stdout)


def publish(bootstrap: str, count: int) -> None:
    publisher = Publisher(bootstrap)
    for number in range(count):
        publisher.queue(f"{PREFIX}.{QUERIES.name}", b"what of the river?", key=f"q-{number}")
    publisher.flush()


def stuck_groupers(found: dict[str, Any]) -> list[str]:
    """What is said of the grouper: the other services do not run here, so what is written for them
    waits.
    """
    return [sentence for sentence in found["stuck"] if sentence.startswith("grouper")]


def grouper_of(found: dict[str, Any]) -> dict[str, Any]:
    groups: list[dict[str, Any]] = found["groups"]
    return next(group for group in groups if group["name"] == f"{PREFIX}-grouper")


@pytest.mark.slow
@pytest.mark.kafka
def test_a_paused_member_is_named_with_what_waits_for_it_and_found_well_once_it_goes_on(
    kafka_bootstrap: str, grouper: ServiceProcess
) -> None:
    publish(kafka_bootstrap, 20)
    wait_until(
        lambda: (
            grouper.metric("carpool_commits_total") > 0
            and grouper.metric("carpool_units_in_flight") == 0
        ),
        "worked",
    )
    found = status(kafka_bootstrap, grouper)[1]
    assert (stuck_groupers(found), found["groups_error"]) == ([], None)
    of_grouper = grouper_of(found)
    assert len(of_grouper["members"]) == 1
    assert sum(each["waiting"] for each in of_grouper["partitions"]) == 0, (
        "markers at the end of a log are no records"
    )

    os.kill(grouper.pid, signal.SIGSTOP)
    publish(kafka_bootstrap, 130)
    time.sleep(1.0)
    code, found = status(kafka_bootstrap, grouper)
    of_grouper = grouper_of(found)
    assert code == 1
    assert sum(each["waiting"] for each in of_grouper["partitions"]) == 130
    assert all(0.5 < each["oldest_s"] < 60 for each in of_grouper["partitions"] if each["waiting"])
    (sentence,) = stuck_groupers(found)
    assert sentence.startswith("grouper is stuck: rag.queries.v1[")
    (member,) = of_grouper["members"]
    assert member["name"] != member["host"], "a member has its instance id as its name"
    assert f"member {member['name']} is assigned it and does not answer" in sentence
    assert not found["is_ready"]

    os.kill(grouper.pid, signal.SIGCONT)
    wait_until(lambda: stuck_groupers(status(kafka_bootstrap, grouper)[1]) == [], "it goes on")
    wait_until(
        lambda: (
            not any(
                p["waiting"] for p in grouper_of(status(kafka_bootstrap, grouper)[1])["partitions"]
            )
        ),
        "it is done",
    )
