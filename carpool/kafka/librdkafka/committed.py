"""Reads and writes the committed offsets of a consumer group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as RawPartition

from carpool.errors import ConfigError, FencedError, RetryableError
from carpool.kafka.client_config import client_config
from carpool.kafka.clients import Position
from carpool.kafka.cluster import told
from carpool.kafka.commit_metadata import in_topic
from carpool.kafka.librdkafka.convert import KINDS, raw_offsets, sort_error
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


def commit_now(
    settings: KafkaSettings,
    group: str,
    consumer: Consumer,
    offsets: Mapping[TopicPartition, Position],
) -> None:
    """Commits and blocks. Raises `RetryableError`, or `FencedError` for one that is no member."""
    raw = raw_offsets(settings, offsets)
    topics = ", ".join(sorted({each.topic for each in raw}))
    needed = f"Read on group {group} and on {topics}"
    try:
        results = consumer.commit(offsets=raw, asynchronous=False)
    except KafkaException as error:
        raise sort_error(error.args[0], needed) from error
    for result in results or ():
        if result.error is not None:
            raise sort_error(result.error, needed)


class GroupOffsets:
    """The committed offsets of one group. Every call blocks for up to the request time-out."""

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        self._settings = settings
        self._group = group
        self._right = f"Read on group {group} and on its topics"

    def read(self, at: TopicPartition) -> Position:
        """Returns the committed position. Raises `RetryableError` where it cannot be read."""
        try:
            found = committed_so_far(self._settings, self._group, [at])[at]
        except KafkaException as error:
            why = error.args[0].str()  # without the right librdkafka says "timed out"
            raise RetryableError(
                f"offsets cannot be read, which needs {self._right}: {why}"
            ) from error
        if found.error is not None:
            raise RetryableError(f"offsets cannot be read: {told(found.error, self._right)}")
        return Position(found.offset if found.offset >= 0 else None, found.metadata or "")

    def write(self, at: TopicPartition, position: Position) -> None:
        """Commits a position. Raises `ConfigError` while the group has members."""
        consumer = Consumer(
            client_config(self._settings)
            | {"group.id": self._group, "enable.auto.commit": False, "log_level": 0}
        )
        try:
            commit_now(self._settings, self._group, consumer, {at: position})
        except FencedError as error:
            raise ConfigError(
                f"the group {self._group} has members: stop the service, and call this again when "
                "their sessions have ended"
            ) from error
        finally:
            consumer.close()
