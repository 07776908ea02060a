"""`carpool status` on real brokers: a paused member is found, a service that works is not called
stuck.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.core.stack import ServiceProcess, Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from schemas.topics import QUERIES
from tests.cli.support import carpool
from tests.e2e.support import Publisher, build_index, quick_settings
from tests.waiting import wait_until

PREFIX = "looked-at"


@pytest.fixture
def grouper(kafka_bootstrap: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A grouper on a real broker."""
    create_topics(KafkaSettings(bootstrap=kafka_bootstrap, prefix=PREFIX))
    with Stack(
        bootstrap=kafka_bootstrap,
        index_dir=build_index(tmp_path, documents=100, nlist=4),
        work_dir=tmp_path,
        services=("grouper",),
        settings=quick_settings() | {"CARPOOL_KAFKA_PREFIX": PREFIX},
    ) as stack:
        stack["grouper"].wait_ready()
        try:
            yield stack["grouper"]
        finally:
            os.kill(stack["grouper"].pid, signal.SIGCONT)


class Looked:
    """What `carpool status` says of the grouper; the other services do not run here."""

    def __init__(self, bootstrap: str, grouper: ServiceProcess) -> None:
        at = f"--bootstrap {bootstrap} --url grouper=127.0.0.1:{grouper.port}"
        self.ended = carpool(f"status --json {at} --set kafka.prefix={PREFIX}")
        found = self.ended.json
        self.stuck = [each for each in found["stuck"] if each.startswith("grouper")]
        self.errors = found["groups_error"]
        groups: list[dict[str, Any]] = found["groups"]
        (group,) = (each for each in groups if each["name"] == f"{PREFIX}-grouper")
        self.members, self.partitions = group["members"], group["partitions"]

    @property
    def waiting(self) -> int:
        return sum(each["waiting"] for each in self.partitions)


def publish(bootstrap: str, count: int) -> None:
    publisher = Publisher(bootstrap)
    for number in range(count):
        publisher.queue(f"{PREFIX}.{QUERIES.name}", b"what of the river?", key=f"q-{number}")
    publisher.flush()


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
    looked = Looked(kafka_bootstrap, grouper)
    assert (looked.stuck, looked.errors, len(looked.members)) == ([], None, 1)
    assert looked.waiting == 0, "markers at the end of a log are no records"

    os.kill(grouper.pid, signal.SIGSTOP)
    publish(kafka_bootstrap, 130)
    time.sleep(1.0)
    looked = Looked(kafka_bootstrap, grouper)
    assert (looked.ended.code, looked.waiting, looked.ended.json["is_ready"]) == (1, 130, False)
    assert all(0.5 < each["oldest_s"] < 60 for each in looked.partitions if each["waiting"])
    (sentence,) = looked.stuck
    assert sentence.startswith("grouper is stuck: rag.queries.v1[")
    (member,) = looked.members
    assert member["name"] != member["host"], "a member has its instance id as its name"
    assert f"member {member['name']} is assigned it and does not answer" in sentence

    os.kill(grouper.pid, signal.SIGCONT)
    wait_until(lambda: not Looked(kafka_bootstrap, grouper).stuck, "it goes on")
    wait_until(lambda: not Looked(kafka_bootstrap, grouper).waiting, "it is done")
