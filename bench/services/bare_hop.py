"""A bare hop: copies records from one topic to the next; the baseline of `carpool bench overhead`.

A plain consumer and a plain producer on one thread, with the librdkafka settings of Carpool's
services and nothing of their loop: no accounting, retries or takeover. Its arguments: the source
and the target. The section `kafka` of Carpool's settings is read from the environment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.core.kafka import kafka_settings
from carpool.kafka.client_config import RETRY_BACKOFF_MS, client_config, producer_config
from carpool.kafka.librdkafka.member_state import choose_protocol, member_config
from carpool.kafka.librdkafka.transactional import TRANSACTION_TIMEOUT_MS
from carpool.run_service import COMMIT_INTERVAL_MS

IDLE_S = 0.2
START_S = 120.0
"""A new broker makes its topic of transactions before the first one begins."""
RECORDS_MAX = 250


def main(source: str, target: str) -> None:
    """Copies until SIGTERM what has come, in one transaction with its offsets, then waits."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    settings = kafka_settings(os.environ)
    source, target = settings.broker_topic(source), settings.broker_topic(target)
    group, timeout_s = f"{source}-bare-hop", settings.request_timeout_ms / 1_000
    admin = AdminClient(client_config(settings))
    protocol = choose_protocol(settings, admin, list(admin.list_topics(timeout=timeout_s).brokers))
    consumer = Consumer(
        member_config(settings, group, protocol)
        | {"auto.offset.reset": "earliest", "retry.backoff.ms": RETRY_BACKOFF_MS}
    )
    consumer.subscribe([source])
    producer = Producer(
        producer_config(settings)
        | {
            "transactional.id": f"{group}-bare",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
    )
    producer.init_transactions(START_S)
    due_s = 0.0
    while not ending.is_set():
        if not (records := poll(consumer, 1, IDLE_S)):
            continue
        time.sleep(max(0.0, due_s - time.monotonic()))
        records += poll(consumer, RECORDS_MAX - 1, 0)
        producer.begin_transaction()
        for record in records:
            producer.produce(target, record.value(), record.key(), headers=record.headers())
        producer.send_offsets_to_transaction(
            ends_of(records), consumer.consumer_group_metadata(), timeout_s
        )
        producer.commit_transaction(timeout_s)
        due_s = time.monotonic() + COMMIT_INTERVAL_MS / 1_000
    consumer.close()


def poll(consumer: Consumer, count: int, wait_s: float) -> list[Message]:
    """Returns up to `count` records. Where one was not copied, the accounting shows it."""
    return [each for each in consumer.consume(count, wait_s) if each.error() is None]


def ends_of(records: list[Message]) -> list[TopicPartition]:
    """Returns the offsets after these records, which are in order within each partition."""
    ends = {(one.topic() or "", one.partition() or 0): (one.offset() or 0) + 1 for one in records}
    return [TopicPartition(*place, offset) for place, offset in ends.items()]


if __name__ == "__main__":
    main(*sys.argv[1:])
