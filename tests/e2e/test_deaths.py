"""A process that dies of a record: the record ends after five deaths, the others are answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.guard import GuardedProcess
from carpool.kafka.admin import create_topics
from carpool.kafka.commit_metadata import head_of, with_head
from carpool.kafka.fencing import FATAL_DEATHS
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from schemas.topics import GROUPS, QUERIES, RETRIEVALS
from tests.deploy.doc_blocks import ROOT
from tests.e2e.support import Publisher, committed_positions, read_to_end
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.kafka]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """The address of a new Kafka broker with all topics, which soon takes members for dead."""
    quick = {"group.consumer.session.timeout.ms": 2_000}
    with KafkaServer(tmp_path / "kafka", settings=quick) as server:
        create_topics(KafkaSettings(bootstrap=server.bootstrap))
        yield server.bootstrap


def started(
    bootstrap: str, instance_id: str, log: Path, protocol: str = "consumer"
) -> subprocess.Popen[bytes]:
    module = ["-m", "tests.e2e.mortal_service"]
    command = [sys.executable, *module, bootstrap, instance_id, protocol]
    with log.open("ab") as to:
        return GuardedProcess[bytes](command, cwd=ROOT, stdout=to, stderr=to)


def metadata(bootstrap: str) -> list[str]:
    """The commit metadata of all partitions, without the id of the topic."""
    found = committed_positions(bootstrap, "carpool-grouper", QUERIES.name, range(4))
    return [with_head(text, head_of(text)._replace(topic_id=None)) for _, text in found.values()]


def test_a_record_that_kills_the_process_ends_and_the_others_are_answered(
    broker: str, tmp_path: Path
) -> None:
    publisher = Publisher(broker)
    texts = [f"good {number}" for number in range(10)]
    for number, text in enumerate([*texts[:5], "bad", *texts[5:]]):
        body = json.dumps({"query_id": text, "text": text}).encode()
        publisher.send(QUERIES.name, body, key=str(number % 2))
    log, ends = tmp_path / "log", []

    def begin() -> subprocess.Popen[bytes]:
        return started(broker, "one", log)

    process = begin()

    def has_ended() -> bool:
        nonlocal process
        if process.poll() is not None:
            ends.append(process.returncode)
            process = begin()
        ended = read_to_end(broker, RETRIEVALS.name) + read_to_end(broker, GROUPS.name)
        return len(ended) > len(texts)

    try:
        wait_until(has_ended, lambda: log.read_text()[-3_000:], every_s=0.5, timeout_s=3 * WAIT_S)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    assert ends == [9] * FATAL_DEATHS
    found = [each.value.decode() for each in read_to_end(broker, GROUPS.name)]
    assert sorted(found) == texts
    (answer,) = read_to_end(broker, RETRIEVALS.name)
    (letter,) = read_to_end(broker, "rag.queries.v1.dlq")
    assert (answer.body["query_id"], answer.body["status"]) == ("bad", "failed")
    assert "died twice" in answer.body["error"]["message"]
    assert letter.body["text"] == "bad"
    assert metadata(broker) == [""] * 4, "given up, without deaths"


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.long)])
def test_rebalances_and_ends_with_a_slow_record_in_hand_are_no_deaths(
    broker: str, tmp_path: Path, protocol: str
) -> None:
    publisher, log = Publisher(broker), tmp_path / "log"
    for key in map(str, range(16)):
        publisher.send(QUERIES.name, json.dumps({"text": "slow"}).encode(), key=key)

    def wait_for(*owners: str) -> None:
        wanted = sorted(f"2;{owner};" for owner in owners)
        wait_until(
            lambda: sorted(set(metadata(broker))) == wanted,
            lambda: (metadata(broker), log.read_text()[-3_000:]),
            every_s=0.5,
        )

    processes = [started(broker, "one", log, protocol)]
    try:
        for _ in range(3):
            wait_for("one")
            processes.append(started(broker, "two", log, protocol))
            wait_for("one", "two")
            two = processes.pop()
            two.send_signal(signal.SIGTERM)
            assert two.wait(WAIT_S) == 0
        wait_for("one")
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
    assert metadata(broker) == [""] * 4
