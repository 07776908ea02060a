"""Reads whole topics to the end that a reader of committed records sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import confluent_kafka
import msgspec

from bench.core.topic_recorder import TOPIC_PATIENCE_S
from bench.reliability.chaos.books import SeenRecord
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.records import Message
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from schemas.topics import MESSAGE_BYTES_MAX

TIMEOUT_S = 120.0


def read_committed(kafka: KafkaSettings, topics: Sequence[str]) -> Iterator[SeenRecord]:
    """Yields every committed record of the topics. Raises `CarpoolError` after `TIMEOUT_S`
    without a record.
    """
    config = {"fetch.message.max.bytes": MESSAGE_BYTES_MAX}
    with TopicReader(kafka, SystemClock(), name="bench-audit", config=config) as reader:
        places = [
            at for topic in topics for at in reader.partitions(topic, patience_s=TOPIC_PATIENCE_S)
        ]
        yield from map(_seen, reader.read_to_end(places, silence_s=TIMEOUT_S))


class Behind(msgspec.Struct, frozen=True, kw_only=True):
    """A partition in which a service has not come to the end: what it committed, and where the log
    ends.
    """

    group: str
    topic: str
    partition: int
    committed: int
    metadata: str
    end: int


def behind(
    kafka: KafkaSettings, group: str, topic: str, last_offsets: Mapping[int, int]
) -> Iterator[Behind]:
    """Yields the partitions where a consumer group has committed no offset beyond the last record.
    Raises `CarpoolError`.

    `last_offsets`: of the last record that a reader of committed records sees, by partition.
    """
    wanted = [
        confluent_kafka.TopicPartition(topic, partition) for partition in sorted(last_offsets)
    ]
    try:
        found = committed_so_far(kafka, group, wanted)
    except confluent_kafka.KafkaException as error:
        raise CarpoolError(
            f"what {group} committed cannot be read: {error.args[0].str()}"
        ) from error
    for raw in found:
        if raw.offset <= last_offsets[raw.partition]:
            yield Behind(
                group=group,
                topic=topic,
                partition=raw.partition,
                committed=raw.offset,
                metadata=raw.metadata or "",
                end=last_offsets[raw.partition] + 1,
            )


def _seen(message: Message) -> SeenRecord:
    return SeenRecord(
        topic=message.source.topic,
        partition=message.source.partition,
        offset=message.source.offset,
        timestamp_ms=message.source.timestamp_ms,
        key=(message.key or b"").decode(errors="replace"),
        value=message.value or b"",
        headers=message.headers,
    )
