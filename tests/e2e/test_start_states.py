"""A service that starts while brokers or a coordinator are away says so, waits, and gets ready."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.core.stack import Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.librdkafka import LibrdkafkaTransactionalProducer
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import HOST, KafkaServer, free_ports
from schemas.topics import QUERIES
from tests.kafka.conformance.harness import insist
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
TIMEOUT_MS = 2_000


def java_hash(text: str) -> int:
    """The absolute value of Java's hash, by which Kafka chooses a coordinator."""
    found = 0
    for letter in text:
        found = (31 * found + ord(letter)) & 0xFFFFFFFF
    return abs(found - 2**32 if found >= 2**31 else found)


def leaders(server: KafkaServer, topic: str) -> dict[int, int]:
    """The broker of each partition; -1: none."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    found = admin.list_topics(timeout=20).topics.get(topic)
    return {} if found is None else {at: each.leader for at, each in found.partitions.items()}


def led_prefix(server: KafkaServer, *, group: int, transactional_id: int) -> str:
    """A prefix whose generator has its coordinators at these brokers. Makes Kafka's own topics."""
    settings = KafkaSettings(bootstrap=server.bootstrap, request_timeout_ms=TIMEOUT_MS)
    with suppress(KafkaException):
        committed_so_far(settings, "any", [TopicPartition(QUERIES.name, 0)])
    producer = LibrdkafkaTransactionalProducer(settings, "any")
    insist(producer.start)
    producer.close()
    groups, ids = (
        wait_until(lambda topic=topic: leaders(server, topic), topic, every_s=0.5)
        for topic in (OFFSETS, TRANSACTIONS)
    )
    for number in range(10_000):
        name = f"p{number}-generator"
        if (
            groups[java_hash(name) % len(groups)] == group
            and ids[java_hash(f"{name}-generator") % len(ids)] == transactional_id
        ):
            return f"p{number}"
    raise AssertionError((groups, ids))


@pytest.mark.parametrize("away", ["the group", "the transactional id"])
def test_a_service_waits_for_its_brokers_and_for_the_coordinator_of(
    away: str, tmp_path: Path
) -> None:
    ports = [free_ports(), free_ports()]
    alone = {
        "controller.quorum.voters": f"1@{HOST}:{ports[0].controllers}",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 7,  # with 8, group and id share a place
        "min.insync.replicas": 1,
        "broker.session.timeout.ms": 2_000,
        "broker.heartbeat.interval.ms": 500,
    }
    second = {
        "process.roles": "broker",
        "listeners": f"CLIENTS://{HOST}:{ports[1].clients},BROKERS://{HOST}:{ports[1].brokers}",
    }
    home = KafkaServer(tmp_path / "1", ports=ports, settings=alone)
    other = KafkaServer(tmp_path / "2", node=2, ports=ports, settings=alone | second)
    with home, other:
        prefix = led_prefix(home, group=2 if away == "the group" else 1, transactional_id=2)
        other.kill()
        wait_until(lambda: -1 in leaders(home, OFFSETS).values(), "one is away", every_s=0.5)
        create_topics(KafkaSettings(bootstrap=home.bootstrap, prefix=prefix))
        home.kill()
        process = Stack(
            bootstrap=home.bootstrap,
            index_dir=tmp_path,
            work_dir=tmp_path,
            services=("generator",),
            settings={
                "CARPOOL_KAFKA_PREFIX": prefix,
                "CARPOOL_KAFKA_REQUEST_TIMEOUT_MS": str(TIMEOUT_MS),
                "CARPOOL_LLM_ENGINE": "none",
            },
        )["generator"]

        def says(*texts: str) -> bool:
            assert process.is_running, process.log_tail()
            lines = process.log_file.read_text().splitlines()
            return any(all(text in line for text in texts) for line in lines)

        process.start()
        try:
            wait_until(lambda: says("no broker answers at", "tried again"), process.log_tail)
            home.start()
            where = f"Read on group {prefix}-generator"
            if away == "the transactional id":
                where = f"transactional id {prefix}-generator-generator"
            wait_until(lambda: says(where, "tried again"), process.log_tail)
            if away == "the transactional id":  # its pages are served by now
                wait_until(lambda: where in process.page("/readyz")[1], process.log_tail)
                assert process.stop() == 0, "it ends while it waits"
                process.start()
            other.start()
            process.wait_ready()
        finally:
            process.stop()
