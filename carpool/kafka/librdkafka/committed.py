"""Reads the committed offsets of a consumer group, for clients that are not members."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RawPartition

from carpool.kafka.client_config import client_config
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings


def committed_so_far(
    settings: KafkaSettings, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, RawPartition]:
    """Returns the offsets of a group, ignoring open transactions. Blocks; raises `KafkaException`.

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
        found = consumer.committed(wanted, timeout=settings.request_timeout_ms / 1_000)
        return {place_of(settings, raw): raw for raw in found}
    finally:
        consumer.close()
