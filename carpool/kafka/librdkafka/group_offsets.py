"""Reads and writes the committed offset of a group that has no members."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException

from carpool.errors import ConfigError, RetryableError
from carpool.kafka.client_config import client_config
from carpool.kafka.clients import Position
from carpool.kafka.cluster import told
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.librdkafka.convert import raw_offsets
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

HAS_MEMBERS = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)


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
            results = consumer.commit(
                offsets=raw_offsets(self._settings, {at: position}), asynchronous=False
            )
            failed = next((each.error for each in results or () if each.error is not None), None)
        except KafkaException as error:
            failed = error.args[0]
        finally:
            consumer.close()
        if failed is None:
            return
        if failed.code() in HAS_MEMBERS:
            raise ConfigError(
                f"the group {self._group} has members: stop the service, and call this again when "
                "their sessions have ended"
            )
        raise RetryableError(f"the offset was not committed: {told(failed, self._right)}")
