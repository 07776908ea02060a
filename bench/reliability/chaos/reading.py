"""Reads whole topics to the end that a reader of committed records sees."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import confluent_kafka
import msgspec

from bench.core.topic_recorder import end_offsets
from bench.reliability.chaos.books import SeenRecord
from carpool.errors import CarpoolError
from carpool.kafka.client_config import client_config
from carpool.kafka.settings import KafkaSettings
from producers.publish_queries import LOGGER
from schemas.topics import MESSAGE_BYTES_MAX

TIMEOUT_S = 120.0
COMMITTED_TIMEOUT_S = 20.0
BATCH = 500


def read_committed(kafka: KafkaSettings, topics: Sequence[str]) -> Iterator[SeenRecord]:
    """Yields every committed record of the topics. Raises `CarpoolError` when an end is not reached
    in `TIMEOUT_S`.
    """
    consumer = confluent_kafka.Consumer(
        client_config(kafka)
        | {
            "group.id": "carpool-bench-books",  # librdkafka wants a name; nothing joins under it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": MESSAGE_BYTES_MAX,
        },
        logger=LOGGER,
    )
    try:
        places = [place for topic in topics for place in end_offsets(consumer, topic)]
        for place in places:
            place.offset = confluent_kafka.OFFSET_BEGINNING
        consumer.assign(places)
        missing = {(place.topic, place.partition) for place in places}
        until_s = time.monotonic() + TIMEOUT_S
        while missing:
            if time.monotonic() > until_s:
                raise CarpoolError(
                    f"these partitions have no end, so nothing can be counted: {sorted(missing)}"
                )
            for message in consumer.consume(BATCH, timeout=0.2):
                error = message.error()
                if error is None:
                    yield _seen(message)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    missing.discard((message.topic() or "", message.partition() or 0))
                elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET or error.fatal():
                    raise CarpoolError(f"the topics cannot be read to their end: {error.str()}")
    finally:
        consumer.close()


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
    config = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
    consumer = confluent_kafka.Consumer(client_config(kafka) | config, logger=LOGGER)
    try:
        wanted = [
            confluent_kafka.TopicPartition(topic, partition) for partition in sorted(last_offsets)
        ]
        found = consumer.committed(wanted, timeout=COMMITTED_TIMEOUT_S)
    except confluent_kafka.KafkaException as error:
        raise CarpoolError(
            f"what {group} committed cannot be read: {error.args[0].str()}"
        ) from error
    finally:
        consumer.close()
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


def _seen(message: confluent_kafka.Message) -> SeenRecord:
    key, value = message.key() or b"", message.value() or b""
    return SeenRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=message.timestamp()[1],
        key=key.decode(errors="replace") if isinstance(key, bytes) else key,
        value=value if isinstance(value, bytes) else value.encode(),
        headers=tuple(message.headers() or ()),
    )
