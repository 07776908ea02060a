"""Converts records and places from and to confluent-kafka, which sees topics with their prefix."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

from confluent_kafka import OFFSET_INVALID, TIMESTAMP_NOT_AVAILABLE
from confluent_kafka import Message as RawMessage
from confluent_kafka import TopicPartition as RawPartition

from carpool.kafka.records import Message, TopicPartition
from carpool.kafka.settings import KafkaSettings
from schemas.headers import UNREADABLE_HEADERS
from schemas.query import DEADLINE_MS_MAX
from schemas.record import Headers, Source

_ask = methodcaller("headers")
"""Calls `headers()` so that its error is raised here.

For a header name that is not UTF-8, confluent-kafka returns a broken list and also sets an error.
Specialised call instructions of the interpreter do not check for it, and it would be raised later
at an unrelated line.
"""


def raw_partition(
    settings: KafkaSettings, at: TopicPartition, offset: int = OFFSET_INVALID
) -> RawPartition:
    """Returns a partition as confluent-kafka names it."""
    return RawPartition(settings.broker_topic(at.topic), at.partition, offset)


def place_of(settings: KafkaSettings, raw: RawPartition) -> TopicPartition:
    """Returns the partition that confluent-kafka names."""
    return TopicPartition(settings.logical_topic(raw.topic), raw.partition)


def place_of_event(settings: KafkaSettings, raw: RawMessage) -> TopicPartition:
    """Returns the partition of an event or a record."""
    return TopicPartition(settings.logical_topic(raw.topic() or ""), raw.partition() or 0)


def message_of(settings: KafkaSettings, raw: RawMessage, received_us: int) -> Message:
    """Returns a record; `raw` must not be an event (`raw.error()` is None)."""
    topic, partition, offset = raw.topic(), raw.partition(), raw.offset()
    assert topic is not None and partition is not None and offset is not None
    kind, timestamp_ms = raw.timestamp()
    source = Source(
        topic=settings.logical_topic(topic),
        partition=partition,
        offset=offset,
        timestamp_ms=0 if kind == TIMESTAMP_NOT_AVAILABLE else min(timestamp_ms, DEADLINE_MS_MAX),
    )
    return Message(
        source=source,
        key=_bytes(raw.key()),
        value=_bytes(raw.value()),
        headers=headers_of(raw),
        received_us=received_us,
    )


def unreadable_batch(
    at: TopicPartition, first: int, last: int, error: str, received_us: int
) -> Message:
    """Returns the record that stands for a batch that cannot be unpacked: its last offset.

    The committed offset is the one after a record, so a restart does not read the batch again.
    """
    return Message(
        source=Source(topic=at.topic, partition=at.partition, offset=last, timestamp_ms=0),
        key=None,
        value=None,
        headers=(),
        received_us=received_us,
        unreadable=f"the batch at {at.topic}[{at.partition}], offsets {first} to {last}, cannot be "
        f"unpacked: {error}. It is damaged, or larger than a fetch may be",
    )


def headers_of(raw: RawMessage) -> Headers:
    """Returns the headers of a record; one `UNREADABLE_HEADERS` where a name is not UTF-8.

    confluent-kafka returns no header of such a record, and readers refuse the record.
    """
    try:
        found: Any = _ask(raw) or ()
    except (SystemError, UnicodeDecodeError):
        return ((UNREADABLE_HEADERS, None),)
    return tuple(
        (name, value.encode() if isinstance(value, str) else value) for name, value in found
    )


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
