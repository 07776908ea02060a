"""One conformance suite of table logs: the broker in memory, the embedded one, real Kafka."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from confluent_kafka import TopicPartition as RawPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from carpool.clock import SystemClock
from carpool.errors import RetryableError
from carpool.kafka.clients import ProducerClient, TransactionalProducerClient
from carpool.kafka.librdkafka import LibrdkafkaProducer, LibrdkafkaTransactionalProducer
from carpool.kafka.records import Message, Output
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_log import TopicLog
from schemas.topics import ANSWERS, RETRIEVALS
from tests.generator.dedup_support import answers_log, make_topics
from tests.kafka.conformance.harness import insist
from tests.memory_broker.broker import MemoryBroker
from tests.memory_broker.producers import MemoryProducer, MemoryTransactionalProducer
from tests.memory_broker.table_log import MemoryAnswersLog
from tests.waiting import WAIT_S, wait_until

PARTITIONS = 4
PREFIX = "tables"
THERE = f"{PREFIX}.{ANSWERS.name}"
"""The topic of answers, as it is named at the brokers."""
KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)
_numbers = itertools.count()


@dataclass
class Log:
    """One kind of broker: how to read its answers, and how to write them."""

    kind: str
    reader: TopicLog
    producer: Callable[[], ProducerClient]
    transactional: Callable[[], TransactionalProducerClient]

    def write(self, partition: int, *values: bytes) -> None:
        producer = self.producer()
        for value in values:
            assert producer.produce(_output(partition, value), lambda error: None)
        assert producer.close(WAIT_S) == 0

    def transaction(self, partition: int, *values: bytes) -> TransactionalProducerClient:
        """Writes values into an open transaction."""
        producer, before = self.transactional(), self.reader.end(partition)
        insist(producer.start)
        producer.begin()
        for value in values:
            producer.produce(_output(partition, value))
        wait_until(lambda: self.reader.end(partition) >= before + len(values))
        return producer

    def read(self, count: int) -> list[Message]:
        found: list[Message] = []
        wait_until(lambda: len(self.add_polled(found)) >= count)
        assert len(found) == count
        return found

    def read_until(self, partition: int, end: int) -> list[Message]:
        found: list[Message] = []
        while self.reader.position(partition) < end:
            self.add_polled(found)
        return found

    def add_polled(self, found: list[Message]) -> list[Message]:
        found += self.reader.poll(0.05, 100)
        return found


@pytest.fixture(params=["memory", "embedded", KAFKA])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    if request.param == "memory":
        topics = {ANSWERS.name: PARTITIONS, RETRIEVALS.name: PARTITIONS}
        found = _memory_log(MemoryBroker(SystemClock(), topics))
    else:
        address = request.getfixturevalue(f"{request.param}_bootstrap")
        settings = KafkaSettings(bootstrap=address, prefix=PREFIX, partitions=PARTITIONS)
        found = _kafka_log(request.param, settings)
    found.reader.open()
    yield found
    found.reader.close()


def _memory_log(broker: MemoryBroker) -> Log:
    return Log(
        "memory",
        MemoryAnswersLog(broker),
        partial(MemoryProducer, broker),
        partial(MemoryTransactionalProducer, broker, "t"),
    )


def _kafka_log(kind: str, settings: KafkaSettings) -> Log:
    make_topics(settings)
    return Log(
        kind,
        answers_log(settings, SystemClock()),
        partial(LibrdkafkaProducer, settings),
        partial(LibrdkafkaTransactionalProducer, settings, f"t-{uuid.uuid4()}"),
    )


def _output(partition: int, value: bytes) -> Output:
    return Output(
        topic=ANSWERS.name, key=b"k", value=value, headers=(("h", b"1"),), partition=partition
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def values(*texts: str) -> list[bytes]:
    """Values that no other test of this broker has written."""
    return [f"{text}-{next(_numbers)}".encode() for text in texts]


def begin_at_the_end(log: Log, partition: int) -> int:
    """Reads a partition to its end, past records of other tests; returns the end."""
    log.reader.begin(partition, 0)
    log.read_until(partition, log.reader.end(partition))
    return log.reader.position(partition)


def test_present_and_later_records_are_read_in_order_with_key_headers_and_place(log: Log) -> None:
    start = begin_at_the_end(log, 0)
    a, b, c = values("a", "b", "c")
    log.write(0, a, b)
    first, second = log.read(2)
    assert (first.value, first.source.offset, second.value, second.source.offset) == (
        a,
        start,
        b,
        start + 1,
    )
    assert (first.key, first.headers, first.source.topic, first.source.partition) == (
        b"k",
        (("h", b"1"),),
        ANSWERS.name,
        0,
    )
    log.write(0, c)
    assert log.read(1)[0].value == c
    assert log.reader.position(0) == start + 3


def test_reading_begins_with_the_first_record_of_the_horizon(log: Log) -> None:
    old, new = values("old", "new")
    log.write(1, old)
    time.sleep(0.05)
    since_ms, end = now_ms(), log.reader.end(1)
    time.sleep(0.05)
    log.write(1, new)
    assert log.reader.first_since(1, since_ms) == end
    log.reader.begin(1, end)
    assert log.read_until(1, end + 1)[-1].value == new


def test_a_log_without_records_in_the_horizon_begins_at_its_end(log: Log) -> None:
    log.write(1, *values("old"))
    if log.kind == "embedded":
        pytest.skip("the embedded broker has such a log read from its beginning")
    end = log.reader.end(1)
    assert log.reader.first_since(1, now_ms() + 60_000) == end


def test_a_forgotten_partition_is_no_longer_read_until_it_begins_again(log: Log) -> None:
    start = begin_at_the_end(log, 0)
    begin_at_the_end(log, 2)
    a, b = values("a", "b")
    log.reader.forget(0)
    log.write(0, a)
    log.write(2, b)
    assert log.read(1)[0].value == b
    assert [message for _ in range(10) for message in log.reader.poll(0.02, 100)] == []
    log.reader.begin(0, start)
    assert log.read(1)[0].value == a


@pytest.mark.parametrize("commits", [True, False])
def test_open_transactions_count_for_the_end_and_are_not_read_before_they_commit(
    log: Log, commits: bool
) -> None:
    if log.kind == "embedded":
        pytest.skip("the embedded broker shows what is not committed")
    start = begin_at_the_end(log, 0)
    before, inside, behind = values("before", "inside", "behind")
    log.write(0, before)
    producer = log.transaction(0, inside)
    log.write(0, behind)
    end = log.reader.end(0)
    assert end == start + 3
    assert log.read(1)[0].value == before
    assert [message for _ in range(10) for message in log.reader.poll(0.02, 100)] == []
    assert log.reader.position(0) < end
    insist(producer.commit if commits else producer.abort)
    found = [message.value for message in log.read_until(0, end)]
    assert found == ([inside, behind] if commits else [behind])


def test_a_log_that_ends_with_an_aborted_record_is_read_to_its_end(log: Log) -> None:
    if log.kind == "embedded":
        pytest.skip("the embedded broker shows what is not committed")
    begin_at_the_end(log, 0)
    insist(log.transaction(0, *values("never")).abort)
    assert log.read_until(0, log.reader.end(0)) == []


def test_one_record_is_looked_up_by_its_offset_while_others_are_followed(log: Log) -> None:
    start = begin_at_the_end(log, 0)
    a, b, c = values("a", "b", "c")
    log.write(0, a, b)
    assert len(log.read(2)) == 2
    found = log.reader.fetch(0, start + 1)
    assert found is not None and (found.value, found.headers, found.source.offset) == (
        b,
        (("h", b"1"),),
        start + 1,
    )
    log.write(0, c)
    assert log.read(1)[0].value == c
    found = log.reader.fetch(0, start)
    assert found is not None and found.value == a


def test_a_record_that_does_not_exist_is_none(log: Log) -> None:
    if log.kind == "embedded":
        pytest.skip("the embedded broker does not answer beyond the end")
    end = begin_at_the_end(log, 0)
    assert log.reader.fetch(0, end + 1_000) is None


@pytest.mark.parametrize("log", [KAFKA], indirect=True)
def test_a_deleted_record_is_none_and_the_log_is_read_from_the_first_remaining_record(
    log: Log, kafka_bootstrap: str
) -> None:
    gone, kept = values("gone", "kept")
    start = log.reader.end(2)
    log.write(2, gone, kept)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    for future in admin.delete_records([RawPartition(THERE, 2, start + 1)]).values():
        future.result(WAIT_S)
    assert log.reader.fetch(2, start) is None
    assert log.reader.first_since(2, 0) == start + 1
    log.reader.begin(2, start)
    assert log.read(1)[0].value == kept


@pytest.mark.parametrize("log", [KAFKA], indirect=True)
def test_a_record_of_the_largest_size_is_looked_up(log: Log) -> None:
    start = log.reader.end(2)
    large = bytes(ANSWERS.max_message_bytes - 1_024)
    log.write(2, large)
    found = log.reader.fetch(2, start)
    assert found is not None and found.value == large


@pytest.mark.kafka
def test_metadata_of_an_unknown_partition_is_requested_again(kafka_bootstrap: str) -> None:
    """A starting broker may return too few partitions, which librdkafka would use for minutes."""
    settings = KafkaSettings(bootstrap=kafka_bootstrap, prefix="few-tables", partitions=1)
    reader = _kafka_log("kafka", settings).reader
    reader.open()
    assert reader.first_since(0, 0) == 0
    with pytest.raises(RetryableError, match="Unknown partition"):
        reader.first_since(1, 0)
    admin, there = AdminClient({"bootstrap.servers": kafka_bootstrap}), "few-tables.rag.answers.v1"
    admin.create_partitions([NewPartitions(there, 2)])[there].result(WAIT_S)
    assert insist(lambda: reader.first_since(1, 0)) == 0
    reader.close()
