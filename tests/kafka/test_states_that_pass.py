"""On real Kafka, a running service finds its way back from what the brokers refuse or lack."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from carpool.clock import SystemClock
from carpool.errors import DeploymentError
from carpool.intakes import query_intake
from carpool.kafka.admin import create_topics
from carpool.kafka.checks import DeliveryName
from carpool.kafka.clients import Position
from carpool.kafka.librdkafka import LibrdkafkaConsumer
from carpool.kafka.librdkafka.committed import GroupOffsets
from carpool.kafka.raw_records import raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.loop.loop import Loop
from carpool.loop.stage import Unit
from carpool.run_service import make_consumer, make_delivery
from carpool.telemetry.metrics import Metrics
from schemas.query import Query
from schemas.topics import ANSWERS, QUERIES, QUERIES_DEAD, RETRIEVALS, TOPICS
from tests.cli.support import carpool
from tests.e2e.support import make_again, read_to_end
from tests.loop.support import HandStage, result
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.kafka

PARTITIONS = 2
RESULTS = next(topic for topic in TOPICS if topic.name == result("").topic)
PADDING = "x" * 200
TOO_SMALL_BYTES = 150
"""For a record with this padding, not for the markers of transactions."""


class EchoStage(HandStage):
    """Ends each query at once, with one output."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = set[str]()

    def offer(self, unit: Unit[Query], now_us: int) -> None:
        super().offer(unit, now_us)
        self.ids.add(unit.record.query_id)
        self.finish(unit.record.text)
        self.units.clear()


class Deployment:
    """Topics of one test, and a loop of the grouper on them."""

    def __init__(
        self, bootstrap: str, delivery: DeliveryName = "exactly_once", protocol: str = "consumer"
    ) -> None:
        self.delivery = delivery
        self.stage = EchoStage()
        self.settings = KafkaSettings(
            bootstrap=bootstrap,
            prefix=f"p-{uuid.uuid4().hex[:8]}",
            partitions=PARTITIONS,
            librdkafka={"group.protocol": protocol},
        )
        self.group = self.settings.group_of("grouper")
        create_topics(self.settings, (QUERIES, QUERIES_DEAD, RESULTS, RETRIEVALS, ANSWERS))
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def publish(self, *texts: str, partition: int) -> None:
        topic = self.settings.broker_topic(QUERIES.name)
        producer = Producer({"bootstrap.servers": self.settings.bootstrap})  # knows new partitions
        for text in texts:
            producer.produce(topic, text.encode(), partition=partition)
        assert producer.flush(WAIT_S) == 0

    def results(self) -> list[str]:
        topic = self.settings.broker_topic(RESULTS.name)
        return sorted(
            record.value.decode() for record in read_to_end(self.settings.bootstrap, topic)
        )

    def limit(self, size_bytes: int) -> None:
        """Sets the largest record that the topic of results takes."""
        change = ConfigEntry(
            "max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET
        )
        name = self.settings.broker_topic(RESULTS.name)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
        (altered,) = self.admin.incremental_alter_configs([resource]).values()
        altered.result(WAIT_S)

    @contextmanager
    def running(self) -> Iterator[Loop[Any]]:
        clock = SystemClock()
        loop = Loop[Any](
            name="grouper",
            group=self.group,
            intake=query_intake(),
            stage=self.stage,
            consumer=make_consumer(self.settings, self.group, clock, self.delivery),
            make_delivery=make_delivery(self.settings, self.group, self.delivery),
            clock=clock,
            metrics=Metrics(),
        )
        thread = threading.Thread(target=loop.run, kwargs={"drain_us": 5_000_000})
        thread.start()
        try:
            yield loop
        finally:
            loop.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture
def deployment(request: pytest.FixtureRequest, kafka_bootstrap: str) -> Deployment:
    return Deployment(kafka_bootstrap, getattr(request, "param", "exactly_once"))


def named(first: int, end: int) -> list[str]:
    return [f"q{number:02}{PADDING}" for number in range(first, end)]


def written(texts: list[str]) -> list[str]:
    return [f"{text}/0" for text in texts]


@pytest.mark.parametrize(
    "deployment",
    ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)],
    indirect=True,
)
def test_a_limit_that_is_too_low_for_a_while_loses_nothing(deployment: Deployment) -> None:
    with deployment.running() as loop:
        deployment.publish(*named(0, 20), partition=0)
        wait_until(lambda: deployment.results() == written(named(0, 20)))
        deployment.limit(TOO_SMALL_BYTES)
        deployment.publish(*named(20, 40), partition=1)
        wait_until(lambda: any("it is tried again in" in each for each in loop.not_ready()))
        deployment.limit(1_000_000)
        wait_until(lambda: deployment.results() == written(named(0, 40)))
        wait_until(lambda: loop.not_ready() == ())


def test_partitions_that_are_added_are_read_within_30_s(deployment: Deployment) -> None:
    with deployment.running() as loop:
        wait_until(lambda: loop.not_ready() == ())
        topic, count = deployment.settings.broker_topic(QUERIES.name), PARTITIONS + 2
        deployment.admin.create_partitions([NewPartitions(topic, count)])[topic].result(WAIT_S)
        deployment.publish(*named(0, 5), partition=PARTITIONS)
        deployment.publish(*named(5, 10), partition=PARTITIONS + 1)
        wait_until(lambda: deployment.results() == written(named(0, 10)), timeout_s=30)


@pytest.mark.parametrize(
    ("protocol", "delivery"),
    [
        ("consumer", "exactly_once"),
        ("classic", "at_least_once"),
        pytest.param("consumer", "at_least_once", marks=pytest.mark.long),
        pytest.param("classic", "exactly_once", marks=pytest.mark.long),
    ],
)
def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    kafka_bootstrap: str, protocol: str, delivery: DeliveryName
) -> None:
    deployment = Deployment(kafka_bootstrap, delivery, protocol)
    with deployment.running() as loop:
        deployment.publish(*named(0, 5), partition=0)
        wait_until(lambda: deployment.results() == written(named(0, 5)))
        make_again(deployment.settings, QUERIES)
        deployment.publish(*named(5, 20), partition=0)
        wait_until(
            # What was read before the member noticed is read again.
            lambda: set(deployment.results()) == set(written(named(0, 20))),
            lambda: f"{len(deployment.results())} results, {loop.not_ready()}",
        )
        wait_until(lambda: loop.not_ready() == ())
    assert len(deployment.stage.ids) == 20, "the same places have other questions now"


def test_a_position_of_another_topic_of_that_name_is_no_position(deployment: Deployment) -> None:
    settings, place = deployment.settings, TopicPartition(QUERIES.name, 0)
    deployment.publish(*named(0, 10), partition=0)
    GroupOffsets(settings, deployment.group).write(place, Position(5, f"4;{'x' * 22};1;2+1"))
    with deployment.running():
        wait_until(lambda: deployment.results() == written(named(0, 10)))
    now = GroupOffsets(settings, deployment.group).read(place)
    assert now.offset == 10


def test_a_member_whose_partitions_could_not_be_begun_joins_again(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, failed = LibrdkafkaConsumer._begin, list[int]()

    def fail_once(consumer: LibrdkafkaConsumer, *arguments: Any) -> dict[TopicPartition, Position]:
        failed.append(1)
        if len(failed) == 1:
            raise DeploymentError("no right on the group")
        return begin(consumer, *arguments)

    monkeypatch.setattr(LibrdkafkaConsumer, "_begin", fail_once)
    deployment.publish(*named(0, 5), partition=0)
    with deployment.running() as loop:
        wait_until(lambda: any("no right" in each for each in loop.not_ready()))
        wait_until(lambda: deployment.results() == written(named(0, 5)))
        wait_until(lambda: loop.not_ready() == ())


def test_a_partition_without_its_next_record_waits_alone_until_the_loss_is_accepted(
    deployment: Deployment,
) -> None:
    settings, place = deployment.settings, TopicPartition(QUERIES.name, 0)
    accept = f"groups accept-loss --yes --bootstrap {settings.bootstrap}"
    accept += f" --set kafka.prefix={settings.prefix}"
    deployment.publish(*named(0, 10), partition=0)
    # Records 4 and 8 are complete.
    GroupOffsets(settings, deployment.group).write(place, Position(2, "1;2+1,6+1"))
    (deleted,) = deployment.admin.delete_records([raw_partition(settings, place, 5)]).values()
    deleted.result(WAIT_S)
    with deployment.running() as loop:
        deployment.publish(*named(10, 20), partition=1)
        wait_until(lambda: deployment.results() == written(named(10, 20)))
        wait_until(lambda: any("accept-loss" in each for each in loop.not_ready()))
        (gap,) = loop.not_ready()
        assert f"{QUERIES.name}[0]: 2 records that were never processed are gone" in gap
        assert "written before 20" in gap
        refused = carpool(accept)
        assert (refused.code, "stop the service" in refused.stderr) == (2, True)
    ended = carpool(accept)
    assert ended.code == 0, ended.stderr
    assert "2 records that were never processed are gone" in " ".join(ended.stdout.split())
    left = named(5, 8) + named(9, 10)
    with deployment.running() as loop:
        wait_until(lambda: deployment.results() == written(left + named(10, 20)))
        wait_until(lambda: loop.not_ready() == ())
    assert "no record is missing" in carpool(accept).stdout
