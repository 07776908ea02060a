"""One conformance suite for the client seam: the broker in memory, the embedded one, real Kafka."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from carpool.clock import SystemClock
from carpool.errors import CarpoolError, ConfigError, DeploymentError, RetryableError
from carpool.kafka.admin import create_topics, describe_topics
from carpool.kafka.clients import ConsumerClient, Position, ProducerClient, TopicPartition
from carpool.kafka.librdkafka import LibrdkafkaConsumer, LibrdkafkaProducer
from carpool.kafka.memory import MemoryBroker, MemoryConsumer, MemoryProducer
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.stage import Message, Output
from schemas.topics import QUERIES, Topic

pytestmark = pytest.mark.timeout(180)

PARTITIONS = 2


@dataclass
class Listener:
    """Notes what it is told."""

    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    gone: set[TopicPartition] = field(default_factory=set)

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        self.positions |= positions

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        self.gone |= partitions


@dataclass
class Broker:
    """A topic of its own on one kind of broker, and how to make clients for it."""

    kind: str
    topic: str
    consumer: Callable[[], ConsumerClient]
    producer: Callable[[], ProducerClient]


@pytest.fixture(params=["memory", "embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> Broker:
    name = f"t-{uuid.uuid4().hex[:8]}"
    clock = SystemClock()
    if request.param == "memory":
        memory = MemoryBroker(clock, {name: PARTITIONS})
        return Broker("memory", name, lambda: MemoryConsumer(memory, "g"), lambda: MemoryProducer(memory))
    address = request.getfixturevalue(f"{request.param}_bootstrap")
    settings = KafkaSettings(bootstrap=address, partitions=PARTITIONS, session_timeout_ms=2_000)
    topic = Topic(name=name, partition_by="query_id", retention_ms=10**9, max_message_bytes=1_048_576, purpose="a test")
    assert create_topics(settings, (topic,)) == [name]
    return Broker(
        request.param,
        name,
        lambda: LibrdkafkaConsumer(settings, f"g-{name}", clock),
        lambda: LibrdkafkaProducer(settings),
    )


def poll_until(consumer: ConsumerClient, until: Callable[[], bool], seconds: float = 20) -> list[Message]:
    records, deadline = [], time.monotonic() + seconds
    while not until() and time.monotonic() < deadline:
        message = consumer.poll(0.05)
        if message is not None:
            records.append(message)
    assert until(), "it did not come about"
    return records


def read(consumer: ConsumerClient, count: int) -> list[Message]:
    records: list[Message] = []
    deadline = time.monotonic() + 20
    while len(records) < count and time.monotonic() < deadline:
        message = consumer.poll(0.05)
        if message is not None:
            records.append(message)
    assert len(records) == count
    return records


def write(broker: Broker, *outputs: Output) -> list[CarpoolError | None]:
    producer, reports = broker.producer(), list[CarpoolError | None]()
    for output in outputs:
        assert producer.produce(output, reports.append)
    deadline = time.monotonic() + 20
    while len(reports) < len(outputs) and time.monotonic() < deadline:
        producer.poll(0.05)
    assert producer.close(5) == 0
    return reports


def record(broker: Broker, text: str, partition: int | None = 0) -> Output:
    return Output(
        topic=broker.topic, key=b"k", value=text.encode(), headers=(("h", b"1"), ("null", None)), partition=partition
    )


def test_records_arrive_in_order_with_key_headers_and_place(broker: Broker) -> None:
    assert write(broker, record(broker, "a"), record(broker, "b"), record(broker, "c", 1)) == [None, None, None]
    consumer = broker.consumer()
    consumer.subscribe(broker.topic, Listener())
    records = read(consumer, 3)
    first = [message for message in records if message.source.partition == 0]
    assert [(message.value, message.source.offset) for message in first] == [(b"a", 0), (b"b", 1)]
    assert (first[0].key, first[0].headers) == (b"k", (("h", b"1"), ("null", None)))
    assert first[0].source.topic == broker.topic
    assert first[0].source.timestamp_ms > 0
    consumer.close()


def test_a_member_learns_what_was_committed_and_goes_on_from_there(broker: Broker) -> None:
    write(broker, *(record(broker, text) for text in "abc"))
    consumer, listener = broker.consumer(), Listener()
    consumer.subscribe(broker.topic, listener)
    read(consumer, 3)
    at = TopicPartition(broker.topic, 0)
    assert listener.positions == {at: Position(None, ""), TopicPartition(broker.topic, 1): Position(None, "")}
    consumer.commit_now({at: Position(1, "1;1+1")})
    consumer.close()
    assert listener.gone == set(listener.positions)

    again, heard = broker.consumer(), Listener()
    again.subscribe(broker.topic, heard)
    assert [message.value for message in read(again, 2)] == [b"b", b"c"]
    kept = "" if broker.kind == "embedded" else "1;1+1"  # the embedded broker does not keep commit metadata
    assert heard.positions[at] == Position(1, kept)
    again.close()


def test_commits_asked_for_by_another_thread_are_served_while_the_member_polls(broker: Broker) -> None:
    write(broker, *(record(broker, text) for text in "abc"))
    consumer, listener = broker.consumer(), Listener()
    consumer.subscribe(broker.topic, listener)
    read(consumer, 3)
    results: list[CarpoolError | None] = []
    at = TopicPartition(broker.topic, 0)
    for offset in (1, 2, 3):
        asking = threading.Thread(target=consumer.commit, args=({at: Position(offset, "")}, results.append))
        asking.start()
        asking.join(5)
        assert not asking.is_alive(), "asking does not wait for the poll"
        poll_until(consumer, lambda count=offset: len(results) == count)  # type: ignore[misc]
    assert results == [None, None, None]
    consumer.close()

    again, heard = broker.consumer(), Listener()
    again.subscribe(broker.topic, heard)
    poll_until(again, lambda: at in heard.positions)
    assert heard.positions[at].offset == 3
    again.close()


def test_waiting_counts_from_the_position_and_is_zero_at_the_end(broker: Broker) -> None:
    write(broker, *(record(broker, text) for text in "abc"))
    consumer = broker.consumer()
    consumer.subscribe(broker.topic, Listener())
    read(consumer, 1)
    assert sum(consumer.waiting().values()) == 2
    read(consumer, 2)
    poll_until(consumer, lambda: sum(consumer.waiting().values()) == 0)
    consumer.close()


def test_a_paused_member_keeps_its_partitions_and_gets_nothing(broker: Broker) -> None:
    consumer, listener = broker.consumer(), Listener()
    consumer.subscribe(broker.topic, listener)
    poll_until(consumer, lambda: len(listener.positions) == PARTITIONS)
    consumer.pause()
    write(broker, record(broker, "a"))
    assert [consumer.poll(0.02) for _ in range(10)] == [None] * 10
    consumer.resume()
    assert read(consumer, 1)[0].value == b"a"
    assert not listener.gone
    consumer.close()


def test_a_second_member_gets_its_share_and_gives_it_back(broker: Broker) -> None:
    one, heard_one = broker.consumer(), Listener()
    one.subscribe(broker.topic, heard_one)
    poll_until(one, lambda: len(heard_one.positions) == PARTITIONS)
    two, heard_two = broker.consumer(), Listener()
    two.subscribe(broker.topic, heard_two)

    def both() -> bool:
        two.poll(0.01)
        return len(heard_two.positions) == 1 and len(heard_one.gone) == 1

    poll_until(one, both)
    assert set(heard_two.positions) == heard_one.gone
    heard_one.positions.clear()
    two.close()
    poll_until(one, lambda: set(heard_one.positions) == heard_one.gone)
    one.close()


def test_a_missing_topic_is_refused_at_subscription(broker: Broker) -> None:
    if broker.kind == "embedded":
        pytest.skip("the embedded broker makes a topic when it is looked up")
    consumer = broker.consumer()
    with pytest.raises(ConfigError, match="no-such-topic"):
        consumer.subscribe("no-such-topic", Listener())


@pytest.mark.kafka
def test_a_record_larger_than_its_topic_is_a_deployment_fault(kafka_bootstrap: str) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap)
    create_topics(settings)
    producer, reports = LibrdkafkaProducer(settings), list[CarpoolError | None]()
    producer.produce(Output(topic=QUERIES.name, key=None, value=bytes(2_000_000)), reports.append)
    producer.close(10)
    assert isinstance(reports[0], DeploymentError)


@pytest.mark.kafka
def test_topics_are_made_as_the_list_says_and_drift_is_named(kafka_bootstrap: str) -> None:
    settings = KafkaSettings(bootstrap=kafka_bootstrap)
    create_topics(settings)
    assert create_topics(settings) == [], "making them again changes nothing"
    states = describe_topics(settings)
    assert [state.drift for state in states] == [()] * len(states)
    wrong = Topic(name=QUERIES.name, partition_by="query_id", retention_ms=5, max_message_bytes=7, purpose="a test")
    (state,) = describe_topics(settings, (wrong,))
    assert state.drift == ("max.message.bytes is 1048576, not 7", "retention.ms is 604800000, not 5")


def test_an_unreachable_broker_is_said_so_with_its_address() -> None:
    settings = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_ms=1_000)
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:1"):
        create_topics(settings)
    with pytest.raises(RetryableError, match="is it running"):
        LibrdkafkaConsumer(settings, "g", SystemClock()).subscribe("t", Listener())
