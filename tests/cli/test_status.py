"""`carpool status`: one sentence about who is stuck, from what the brokers and the services say."""

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
from cli.status_verdict import (
    GroupStatus,
    Member,
    Partition,
    PartitionIdle,
    ServiceStatus,
    indexes_line,
    who_is_stuck,
)
from schemas.topics import QUERIES
from tests.cli.support import carpool
from tests.e2e.support import Publisher, build_index, quick_settings
from tests.waiting import wait_until

TOPIC = "rag.retrievals.v1"


def partition(
    number: int = 2, waiting: int = 130, *, moved: bool = False, **more: Any
) -> Partition:
    given: dict[str, Any] = {"oldest_s": 50.0, "member": "host-a"} | more
    return Partition(topic=TOPIC, number=number, waiting=waiting, has_moved=moved, **given)


def group(*partitions: Partition, state: str = "STABLE") -> GroupStatus:
    names = sorted({each.member for each in partitions if each.member})
    members = [
        Member(
            name=name,
            host="10.0.0.1",
            partitions=[(TOPIC, each.number) for each in partitions if each.member == name],
        )
        for name in names
    ]
    return GroupStatus(
        name="carpool-generator", state=state, members=members, partitions=list(partitions)
    )


def process(*numbers: int, idle_s: float = 0.0, **more: Any) -> ServiceStatus:
    given: dict[str, Any] = {
        "name": "generator",
        "address": "10.0.0.1:9464",
        "state": "ready",
        "missing": [],
        "reads": TOPIC,
        "idle_s": idle_s,
        "partitions": [PartitionIdle(topic=TOPIC, number=n, idle_s=idle_s) for n in numbers],
    }
    return ServiceStatus(**given | more)


DOWN = process(state="down", missing=["nothing answers there"])


def verdict(found: GroupStatus, *processes: ServiceStatus) -> str | None:
    return who_is_stuck("generator", found, processes, stuck_after_s=30.0)


@pytest.mark.parametrize("processes", [(), (DOWN,), (process(2),)])
def test_nothing_is_stuck_where_nothing_waits_or_all_moves(
    processes: tuple[ServiceStatus, ...],
) -> None:
    assert verdict(group(partition(waiting=0, oldest_s=None, moved=True)), *processes) is None
    assert verdict(group(partition(moved=True, oldest_s=9_999)), *processes) is None, (
        "behind is not stuck"
    )


def test_a_member_that_does_not_answer_is_named_at_once() -> None:
    assert verdict(group(partition(oldest_s=3.0)), DOWN) == (
        "generator is stuck: rag.retrievals.v1[2] has 130 waiting, the oldest for 3 s; "
        "member host-a is assigned it and does not answer (asked at 10.0.0.1:9464)"
    )


def test_a_member_that_answers_and_has_not_moved_says_why() -> None:
    refuses = ["LLM server at http://x refuses: 503"]
    stuck = process(2, idle_s=42.0, state="not ready", missing=refuses, is_paused=True)
    assert verdict(group(partition()), stuck) == (
        "generator is stuck: rag.retrievals.v1[2] has 130 waiting and has not moved for 42 s; "
        "member host-a is assigned it and has paused its intake: LLM server at http://x refuses: "
        "503"
    )


def test_slow_is_not_stuck_while_the_service_itself_moves() -> None:
    assert verdict(group(partition(oldest_s=500.0)), process(2, idle_s=29.0)) is None


def test_service_that_finishes_other_work_is_not_stuck_over_partition_that_waits_its_turn() -> None:
    busy = process(idle_s=1.0, partitions=process(2, idle_s=100.0).partitions)
    assert verdict(group(partition()), busy) is None


def test_without_an_address_the_age_of_what_waits_decides() -> None:
    assert verdict(group(partition(oldest_s=29.0))) is None
    found = verdict(group(partition(oldest_s=31.0)))
    assert found is not None
    assert "the oldest for 31 s" in found
    assert "--url" in found


def test_an_empty_group_and_a_partition_without_an_owner_are_said_so() -> None:
    nobody = verdict(group(partition(member=None, oldest_s=1.0), state="EMPTY"), DOWN)
    assert nobody is not None
    assert "its consumer group carpool-generator has no members" in nobody
    others = (partition(1, 5, member=None), partition(2, 0, moved=True))
    orphan = verdict(group(*others, state="PREPARING_REBALANCING"))
    assert orphan is not None
    assert "no member has it (the group is PREPARING_REBALANCING)" in orphan


def test_the_partition_with_most_waiting_is_told_and_the_others_are_counted() -> None:
    waiting = (partition(0, 10), partition(1, 20), partition(2, 130))
    found = verdict(group(*waiting, partition(3, 9_999, moved=True)), DOWN)
    assert found is not None
    assert "rag.retrievals.v1[2] has 130 waiting (30 more in 2 other partitions)" in found


def holder(name: str, index: str | None) -> ServiceStatus:
    return process(name=name, index=index)


def test_status_says_which_index_the_services_have_and_whose_is_older() -> None:
    assert indexes_line([holder("generator", None)]) == ("index: no service says which", True)
    same = [holder("grouper", "v-1"), holder("searcher", "v-1")]
    assert indexes_line(same) == ("index of grouper and searcher: v-1", True)
    found = indexes_line([holder("grouper", "v-2"), holder("searcher", "v-1")])
    assert found == (
        "indexes differ: searcher: v-1; grouper: v-2. Restart the services with an older index "
        "than v-2 with that one",
        False,
    )


# ---- the same on real brokers


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
