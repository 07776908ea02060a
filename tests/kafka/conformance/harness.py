"""Brokers of every kind, each with its own topics, for the conformance tests."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer

from carpool.clock import SystemClock
from carpool.errors import CarpoolError, RetryableError
from carpool.kafka.admin import create_topics
from carpool.kafka.client_config import EMBEDDED_FETCH_WAIT_MS, client_config
from carpool.kafka.clients import (
    ConsumerClient,
    Position,
    ProducerClient,
    TransactionalProducerClient,
)
from carpool.kafka.commit_metadata import head_of, with_head
from carpool.kafka.fencing import transactional_id
from carpool.kafka.librdkafka import (
    LibrdkafkaConsumer,
    LibrdkafkaProducer,
    LibrdkafkaTransactionalProducer,
)
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import Message, Output, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from schemas.topics import QUERIES
from tests.memory_broker import (
    MemoryBroker,
    MemoryConsumer,
    MemoryProducer,
    MemoryTransactionalProducer,
)
from tests.waiting import WAIT_S, wait_until

Returned = TypeVar("Returned")

PARTITIONS = 2


@dataclass
class Listener:
    """Notes assigned positions and revoked partitions."""

    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    gone: set[TopicPartition] = field(default_factory=set)

    def assigned(self, positions: Mapping[TopicPartition, Position]) -> None:
        self.positions |= without_topic_ids(positions)

    def revoked(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        self.gone |= partitions

    def fetch_failed(self, at: TopicPartition, error: str, *, lasts: bool = False) -> None:
        raise AssertionError(error)


def without_topic_ids(
    positions: Mapping[TopicPartition, Position],
) -> dict[TopicPartition, Position]:
    """Returns positions as a broker without ids of topics has them, such as the one in memory."""

    def without(metadata: str) -> str:
        return with_head(metadata, head_of(metadata)._replace(topic_id=None))

    return {at: each._replace(metadata=without(each.metadata)) for at, each in positions.items()}


class Broker(ABC):
    """One kind of broker, with topics and a consumer group for one test, and clients for them."""

    kind: str

    def __init__(self, name: str) -> None:
        self.topic, self.results, self.drafts = name, f"{name}-results", f"{name}-drafts"
        self.group = f"g-{name}"
        self.members: list[Member] = []

    def close(self) -> None:
        """Closes the members that are left."""
        for member in [*self.members]:
            member.close()

    def at(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def record(self, text: str, partition: int | None = 0, topic: str = "") -> Output:
        return Output(
            topic=topic or self.topic,
            key=b"k",
            value=text.encode(),
            headers=(("h", b"1"), ("null", None)),
            partition=partition,
        )

    def result(self, text: str) -> Output:
        return self.record(text, topic=self.results)

    def write(self, *outputs: Output) -> list[CarpoolError | None]:
        producer, reports = self.producer(), list[CarpoolError | None]()
        for output in outputs:
            assert producer.produce(output, reports.append)
        assert producer.close(WAIT_S) == 0
        return reports

    @abstractmethod
    def consumer(self, instance_id: str | None = None) -> ConsumerClient: ...

    @abstractmethod
    def producer(self) -> ProducerClient: ...

    @abstractmethod
    def transactional(self, instance_id: str) -> TransactionalProducerClient: ...

    @abstractmethod
    def seen(self, topic: str) -> list[str]:
        """The committed records of a topic."""

    @abstractmethod
    def written(self, topic: str) -> int:
        """Entries in the log of a topic, also invisible ones."""

    @abstractmethod
    def committed(self) -> dict[TopicPartition, Position]:
        """The committed positions of the group that no transaction blocks."""

    @contextmanager
    @abstractmethod
    def no_reply_to_commit(self) -> Iterator[None]:
        """Delays the reply to the next commit of a transaction beyond its time-out."""


class InMemory(Broker):
    kind = "memory"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        topics = dict.fromkeys((self.topic, self.results, self.drafts), PARTITIONS)
        self.broker = MemoryBroker(SystemClock(), topics)

    def consumer(self, instance_id: str | None = None) -> MemoryConsumer:
        return MemoryConsumer(self.broker, self.group, own_instance_id=instance_id)

    def producer(self) -> MemoryProducer:
        return MemoryProducer(self.broker)

    def transactional(self, instance_id: str) -> MemoryTransactionalProducer:
        return MemoryTransactionalProducer(self.broker, transactional_id(self.group, instance_id))

    def seen(self, topic: str) -> list[str]:
        return [(message.value or b"").decode() for message in self.broker.records(topic)]

    def written(self, topic: str) -> int:
        return sum(len(log) for at, log in self.broker.logs.items() if at.topic == topic)

    def committed(self) -> dict[TopicPartition, Position]:
        return self.broker.committed(self.group)

    @contextmanager
    def no_reply_to_commit(self) -> Iterator[None]:
        self.broker.break_next("commit", RetryableError("no reply"), took_effect=True)
        yield


class Reached(Broker):
    """A broker behind an address."""

    def __init__(
        self, name: str, kind: str, settings: KafkaSettings, server: KafkaServer | None = None
    ) -> None:
        super().__init__(name)
        self.kind, self.settings, self.server = kind, settings, server
        topics = [
            msgspec.structs.replace(QUERIES, name=topic)
            for topic in (self.topic, self.results, self.drafts)
        ]
        assert len(create_topics(settings, topics)) == len(topics)

    def consumer(self, instance_id: str | None = None) -> LibrdkafkaConsumer:
        return LibrdkafkaConsumer(
            self.settings, self.group, SystemClock(), own_instance_id=instance_id
        )

    def producer(self) -> LibrdkafkaProducer:
        return LibrdkafkaProducer(self.settings)

    def transactional(self, instance_id: str) -> LibrdkafkaTransactionalProducer:
        return LibrdkafkaTransactionalProducer(
            self.settings, transactional_id(self.group, instance_id)
        )

    def seen(self, topic: str) -> list[str]:
        reader = self._reader()
        places = [
            raw_partition(self.settings, TopicPartition(topic, partition), OFFSET_BEGINNING)
            for partition in range(PARTITIONS)
        ]
        reader.assign(places)
        texts, ends = [], 0
        while ends < len(places):
            message = reader.poll(WAIT_S)
            assert message is not None, "the end of the log is not reached"
            if message.error() is None:
                texts.append((message.value() or b"").decode())
            ends += message.error() is not None
        reader.close()
        return texts

    def written(self, topic: str) -> int:
        reader = self._reader("read_uncommitted")
        ends = [
            reader.get_watermark_offsets(
                raw_partition(self.settings, TopicPartition(topic, partition))
            )
            for partition in range(PARTITIONS)
        ]
        reader.close()
        return sum(high for _, high in ends)

    def committed(self) -> dict[TopicPartition, Position]:
        reader = self._reader()
        found = reader.committed(
            [raw_partition(self.settings, self.at(partition)) for partition in range(PARTITIONS)],
            timeout=WAIT_S,
        )
        reader.close()
        return without_topic_ids(
            {
                place_of(self.settings, raw): Position(raw.offset, raw.metadata or "")
                for raw in found
                if raw.offset >= 0
            }
        )

    def _reader(self, isolation: str = "read_committed") -> Consumer:
        return Consumer(
            client_config(self.settings)
            | {"group.id": self.group, "isolation.level": isolation, "enable.partition.eof": True}
            | {"fetch.wait.max.ms": EMBEDDED_FETCH_WAIT_MS}
        )

    @contextmanager
    def no_reply_to_commit(self) -> Iterator[None]:
        assert self.server is not None, "only a broker of the tests can be paused"
        self.server.pause()
        try:
            yield
        finally:
            self.server.resume()


class Member:
    """A consumer and the transactional producer of the same instance id."""

    def __init__(self, broker: Broker, instance_id: str) -> None:
        self.broker = broker
        self.instance_id = instance_id
        self.listener = Listener()
        self.producer = broker.transactional(instance_id)
        insist(self.producer.start)
        self.consumer = broker.consumer(instance_id)
        self.consumer.subscribe(broker.topic, self.listener)
        broker.members.append(self)

    def await_partitions(self, count: int = PARTITIONS) -> Member:
        poll_until(self.consumer, lambda: len(self.listener.positions) == count)
        return self

    def open(self, texts: list[str], offsets: Mapping[TopicPartition, Position]) -> None:
        """Opens a transaction with these results and offsets, and waits until both are written."""
        before = self.broker.written(self.broker.results)
        self._produce(texts)
        wait_until(lambda: self.broker.written(self.broker.results) >= before + len(texts))
        self.send(offsets)

    def transact(self, texts: list[str], offsets: Mapping[TopicPartition, Position]) -> None:
        self._produce(texts)
        self.send(offsets)
        insist(self.producer.commit)

    def _produce(self, texts: list[str]) -> None:
        self.producer.begin()
        for text in texts:
            self.producer.produce(self.broker.result(text))

    def send(self, offsets: Mapping[TopicPartition, Position]) -> None:
        membership = self.consumer.membership()
        assert membership is not None
        insist(lambda: self.producer.send_offsets(offsets, membership))

    def kill(self) -> None:
        """Ends as a killed process does: leaves no group, closes nothing."""
        if isinstance(self.consumer, MemoryConsumer):
            self.consumer.crash()
        self.broker.members.remove(self)
        del self.producer, self.consumer
        # Callbacks reference the consumer, and its heartbeats continue until it is collected.
        gc.collect()

    def close(self) -> None:
        self.broker.members.remove(self)
        self.consumer.close()
        self.producer.close()


def share(one: Member, two: Member) -> None:
    """Polls two members until each has a partition."""

    def shared() -> bool:
        two.consumer.poll(0.01)
        return len(two.listener.positions) == 1 and len(one.listener.gone) == 1

    poll_until(one.consumer, shared)


def joined(broker: Broker, count: int = PARTITIONS) -> tuple[ConsumerClient, Listener]:
    """A member without an instance id that has `count` partitions."""
    consumer, listener = broker.consumer(), Listener()
    consumer.subscribe(broker.topic, listener)
    poll_until(consumer, lambda: len(listener.positions) >= count)
    return consumer, listener


def insist(call: Callable[[], Returned]) -> Returned:
    """Repeats a call after each `RetryableError`, as the delivery does; returns what it returns."""
    returned: list[Returned] = []

    def went_through() -> bool:
        try:
            returned.append(call())
        except RetryableError:
            return False
        return True

    wait_until(went_through, "the call goes through")
    return returned[0]


def poll_until(consumer: ConsumerClient, done: Callable[[], bool]) -> list[Message]:
    """Polls until `done`, and returns the records that came."""
    records: list[Message] = []

    def polled() -> bool:
        if not done() and (message := consumer.poll(0.05)) is not None:
            records.append(message)
        return done()

    wait_until(polled)
    return records


def read(consumer: ConsumerClient, count: int) -> list[Message]:
    """Polls until `count` records came."""
    records: list[Message] = []

    def polled() -> bool:
        if (message := consumer.poll(0.05)) is not None:
            records.append(message)
        return len(records) == count

    wait_until(polled)
    return records
