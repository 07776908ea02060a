"""The same checks at the embedded broker and at Apache Kafka."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from carpool.guard import GuardedProcess
from carpool.kafka.admin import create_topics, topic_config
from carpool.kafka.checks import Deployment
from carpool.kafka.deployment import check_deployment
from carpool.kafka.settings import KafkaSettings
from schemas.topics import ANSWERS, QUERIES, RETRIEVALS, TOPICS, Topic
from tests.e2e.support import read_to_end
from tests.waiting import WAIT_S, wait_until

IMPATIENT = """
from carpool import run_service
from cli.main import main
run_service.WATCH_S = 0.1
main()
"""
"""A service that looks at its topics often."""


def checked(bootstrap: str) -> Deployment:
    settings = KafkaSettings(bootstrap=bootstrap, prefix="checked")
    create_topics(settings)
    deployment = check_deployment(
        settings, "auto", TOPICS, group="carpool-checked", inputs=[QUERIES.name]
    )
    assert deployment.problems == (), "created topics fit"
    return deployment


def test_the_embedded_broker_has_no_transactions(embedded_bootstrap: str) -> None:
    deployment = checked(embedded_bootstrap)
    assert not deployment.has_transactions
    assert deployment.delivery == "at_least_once"


@pytest.mark.kafka
def test_apache_kafka_has_transactions(kafka_bootstrap: str) -> None:
    deployment = checked(kafka_bootstrap)
    assert deployment.has_transactions
    assert deployment.delivery == "exactly_once"


@pytest.mark.kafka
def test_apache_kafka_acknowledges_what_the_only_copy_has(kafka_bootstrap: str) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap)
    topic = msgspec.structs.replace(QUERIES, name=f"queries-{uuid.uuid4().hex[:8]}")
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    config = topic_config(topic) | {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic(topic.name, 1, 1, config=config)])[topic.name].result(WAIT_S)
    plain = Producer({"bootstrap.servers": kafka_bootstrap, "acks": "all"})
    plain.produce(topic.name, b"1")
    assert plain.flush(WAIT_S) == 0
    transactional = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": topic.name})
    transactional.init_transactions(WAIT_S)
    transactional.begin_transaction()
    transactional.produce(topic.name, b"2")
    transactional.commit_transaction(WAIT_S)
    assert [each.value for each in read_to_end(kafka_bootstrap, topic.name)] == [b"1", b"2"]
    assert check_deployment(settings, "auto", (topic,), group="g", inputs=()).problems == ()


@pytest.mark.kafka
def test_records_that_are_gone_before_they_were_read_are_found_at_the_start(
    kafka_bootstrap: str,
) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap, partitions=1)
    topic = msgspec.structs.replace(QUERIES, name=f"queries-{uuid.uuid4().hex[:8]}")
    group = f"group-{uuid.uuid4().hex[:8]}"
    create_topics(settings, (topic,))
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for number in range(10):
        producer.produce(topic.name, str(number).encode(), partition=0)
    assert producer.flush(WAIT_S) == 0

    def commit(offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic.name, 0, offset)], asynchronous=False)
        consumer.close()

    def standing() -> tuple[str, ...]:
        deployment = check_deployment(settings, "auto", (topic,), group=group, inputs=[topic.name])
        assert deployment.problems == (), "the partitions without a gap are read"
        return tuple(each for each in deployment.warnings if "[0]" in each)

    commit(4)
    assert standing() == ()
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(topic.name, 0, 7)]).values()
    deleted.result(WAIT_S)
    (gone,) = standing()
    assert "3 records that were never processed are gone, written before 20" in gone
    commit(10)
    assert standing() == ()
    commit(11)
    (beyond,) = standing()
    assert "the log ends at 10" in beyond


@pytest.mark.kafka
def test_a_service_goes_on_and_starts_while_a_topic_has_more_partitions_than_its_siblings(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap, prefix=f"w-{uuid.uuid4().hex[:8]}")
    create_topics(settings)
    name, log = settings.broker_topic(QUERIES.name), tmp_path / "log"
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    ours = {
        "CARPOOL_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "CARPOOL_KAFKA_PREFIX": settings.prefix,
        "CARPOOL_LLM_ENGINE": "none",
        "CARPOOL_HTTP_PORT": "0",
    }
    command = [sys.executable, "-c", IMPATIENT, "generator"]

    def add(topic: Topic, count: int) -> None:
        there = settings.broker_topic(topic.name)
        admin.create_partitions([NewPartitions(there, count)])[there].result(WAIT_S)

    def logged(text: str) -> None:
        wait_until(lambda: text in log.read_text(), log.read_text)

    @contextmanager
    def running() -> Iterator[None]:
        with (
            log.open("w") as file,
            GuardedProcess[bytes](
                command, env=os.environ | ours, stdout=file, stderr=file
            ) as process,
        ):
            try:
                yield
                assert process.poll() is None, log.read_text()
            finally:
                process.kill()

    warning = f"{name}.dlq has 4 partitions and {name} has"
    with running():
        logged("joining the consumer group")
        for count in (6, 8):
            add(QUERIES, count)
            logged(f"{warning} {count}")
        time.sleep(1.0)  # it looks again
    assert log.read_text().count(warning) == 2
    add(RETRIEVALS, 6)
    with running():
        logged(f"{warning} 8")
        logged("a table cannot be read; retrying")
        add(ANSWERS, 6)
        logged("a table is read again")
