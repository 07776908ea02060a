"""Reads the committed offsets of a consumer group, for clients that are not members."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as RawPartition

from carpool.kafka.client_config import client_config
from carpool.kafka.commit_metadata import in_topic
from carpool.kafka.librdkafka.error_kinds import KINDS
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_ids import TopicIds

AGAIN_S = 0.1


def committed_so_far(
    settings: KafkaSettings, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, RawPartition]:
    """Returns the offsets of a group, ignoring open transactions. Blocks.

    Raises `KafkaException`, and `RetryableError` where no broker describes the topics. An offset of
    an earlier topic of that name counts as none. Waits for a coordinator that starts, for at
    most the request time-out.
    Uses a consumer that never joins: librdkafka's admin client crashes the process when the
    coordinator moves meanwhile (https://github.com/confluentinc/librdkafka/issues/5040).
    """
    config = {
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_uncommitted",
        "log_level": 0,
    }
    consumer = Consumer(client_config(settings) | config)
    try:
        wanted = [raw_partition(settings, at) for at in partitions]
        timeout_s = settings.request_timeout_ms / 1_000
        until_s = time.monotonic() + timeout_s
        ids = TopicIds(settings).now(at.topic for at in partitions)
        while True:
            try:
                raws = consumer.committed(wanted, timeout=timeout_s)
                found = {place_of(settings, raw): raw for raw in raws}
                for at, raw in found.items():
                    if in_topic(raw.metadata or "", ids.get(at.topic)) is None:
                        found[at] = RawPartition(raw.topic, raw.partition)
                return found
            except KafkaException as error:
                if KINDS.get(error.args[0].code()) != "passes" or time.monotonic() >= until_s:
                    raise
            time.sleep(AGAIN_S)
    finally:
        consumer.close()
