"""A bare hop: copies records from one topic to the next; the baseline of `carpool bench overhead`.

A plain consumer and a plain producer on one thread, with the librdkafka settings of Carpool's
services and nothing of their loop: no accounting, retries or takeover. Any failure ends the
process. Its one argument is a `Hop` as JSON; the section `kafka` of Carpool's settings is read from
the environment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.core.kafka import kafka_settings
from carpool.kafka.checks import DeliveryName
from carpool.kafka.client_config import RETRY_BACKOFF_MS, client_config, producer_config
from carpool.kafka.librdkafka.protocol import choose_protocol, member_config
from carpool.kafka.librdkafka.transactional import TRANSACTION_TIMEOUT_MS
from carpool.kafka.settings import KafkaSettings
from carpool.loop.delivery.factory import COMMIT_INTERVAL_MS, OFFSETS_INTERVAL_MS

IDLE_S = 0.2
RECORDS_MAX = 250

IsStopped = Callable[[], bool]


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """What a hop copies: from one topic to the next, as a consumer group, with a delivery."""

    bootstrap: str
    source: str
    target: str
    group: str
    delivery: DeliveryName


def copy_exactly_once(
    settings: KafkaSettings, hop: Hop, consumer: Consumer, is_stopped: IsStopped
) -> None:
    """Copies what has come in one transaction with its offsets, then waits one commit interval."""
    timeout_s = settings.request_timeout_ms / 1_000
    producer = Producer(
        producer_config(settings)
        | {
            "transactional.id": f"{hop.group}-bare",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
    )
    producer.init_transactions(timeout_s)
    due_s = 0.0
    while not is_stopped():
        first = records_of([consumer.poll(IDLE_S)])
        if not first:
            continue
        time.sleep(max(0.0, due_s - time.monotonic()))
        records = first + records_of(consumer.consume(RECORDS_MAX - 1, 0))
        producer.begin_transaction()
        copy(producer, hop, records)
        producer.send_offsets_to_transaction(
            ends_of(records), consumer.consumer_group_metadata(), timeout_s
        )
        producer.commit_transaction(timeout_s)
        due_s = time.monotonic() + COMMIT_INTERVAL_MS / 1_000


def copy_at_least_once(
    settings: KafkaSettings, hop: Hop, consumer: Consumer, is_stopped: IsStopped
) -> None:
    """Copies what comes immediately; flushes and commits offsets after each commit interval."""
    producer = Producer(producer_config(settings))
    uncommitted: list[Message] = []
    due_s = 0.0
    while not is_stopped():
        wait_s = max(0.0, due_s - time.monotonic()) if uncommitted else IDLE_S
        if records := records_of([consumer.poll(wait_s)]):
            records += records_of(consumer.consume(RECORDS_MAX - 1, 0))
        copy(producer, hop, records)
        uncommitted += records
        producer.poll(0)
        if uncommitted and time.monotonic() >= due_s:
            producer.flush(settings.request_timeout_ms / 1_000)
            consumer.commit(offsets=ends_of(uncommitted), asynchronous=True)
            uncommitted = []
            due_s = time.monotonic() + OFFSETS_INTERVAL_MS / 1_000
    producer.flush(settings.request_timeout_ms / 1_000)


def copy(producer: Producer, hop: Hop, records: Iterable[Message]) -> None:
    """Writes records unchanged. Raises `KafkaException`, later, for one that is not delivered."""
    for record in records:
        producer.produce(
            hop.target,
            record.value(),
            record.key(),
            headers=record.headers(),
            on_delivery=_require_delivered,
        )


def _require_delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def records_of(polled: Iterable[Message | None]) -> list[Message]:
    """Returns the records of a poll without ends of partitions. Raises on a fatal error."""
    records = []
    for message in polled:
        error = message.error() if message is not None else None
        if message is not None and error is None:
            records.append(message)
        elif error is not None and error.fatal():
            raise KafkaException(error)
    return records


def ends_of(records: Iterable[Message]) -> list[TopicPartition]:
    """Returns the offsets after these records, which are in order within each partition."""
    ends = {(record.topic(), record.partition()): (record.offset() or 0) + 1 for record in records}
    return [
        TopicPartition(topic or "", partition or 0, offset)
        for (topic, partition), offset in ends.items()
    ]


def main(argument: str) -> None:
    """Copies until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    hop = msgspec.json.decode(argument, type=Hop)
    settings = kafka_settings(os.environ, bootstrap=hop.bootstrap, delivery=hop.delivery)
    admin = AdminClient(client_config(settings))
    brokers = list(admin.list_topics(timeout=settings.request_timeout_ms / 1_000).brokers)
    protocol = choose_protocol(settings, admin, brokers)
    consumer = Consumer(
        member_config(settings, hop.group, protocol)
        | {"auto.offset.reset": "earliest", "retry.backoff.ms": RETRY_BACKOFF_MS}
    )
    consumer.subscribe([hop.source])
    run = copy_exactly_once if hop.delivery == "exactly_once" else copy_at_least_once
    run(settings, hop, consumer, stopping.is_set)
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1])
