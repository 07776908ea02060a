"""Reads topics as they are now, from their beginning to their end, without a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
)
from confluent_kafka import Message as RawMessage
from confluent_kafka import TopicPartition as RawPartition

from carpool.clock import Clock
from carpool.errors import ConfigError, RetryableError
from carpool.kafka.client_config import PROTOCOL_OVERHEAD_BYTES, client_config
from carpool.kafka.raw_headers import headers_of
from carpool.kafka.records import Message
from carpool.kafka.settings import KafkaSettings
from schemas.record import Source
from schemas.topics import MESSAGE_BYTES_MAX

POLL_S = 0.05
BATCH = 500
REPORT_EVERY = 1_000
ONE_RECORD_S = 3.0


class _Silent(RetryableError):
    """The brokers sent nothing, not even that there is nothing."""


class LogReader:
    """What is committed, of any topic. Every call blocks; not thread-safe."""

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._timeout_s = settings.request_timeout_ms / 1_000

    def topics(self) -> frozenset[str]:
        """Returns the names of all topics. Raises `RetryableError` when no broker answers."""
        consumer = self._consumer()
        try:
            return frozenset(self._listed(consumer))
        finally:
            consumer.close()

    def bounds(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """Returns the first offset of each partition, and the one after its last record."""
        consumer = self._consumer()
        try:
            return self._bounds(consumer, topic)
        finally:
            consumer.close()

    def read(
        self, topic: str, progress: Callable[[int, int], None] = lambda read, of: None
    ) -> Iterator[Message]:
        """Yields every record, each partition in order. `progress` is told how many were read, and
        of about how many.

        Raises `RetryableError` when the brokers are silent for longer than the request time-out,
        `ConfigError` for a topic that does not exist.
        """
        consumer = self._consumer()
        try:
            begins, ends = self._bounds(consumer, topic)
            about = sum(ends.values()) - sum(begins.values())
            consumer.assign(
                [RawPartition(topic, partition, OFFSET_BEGINNING) for partition in begins]
            )
            records = self._to_end(consumer, set(begins), silence_s=self._timeout_s)
            for read, message in enumerate(records, start=1):
                if read % REPORT_EVERY == 0:
                    progress(read, max(about, read))
                yield message
        finally:
            consumer.close()

    def read_one(self, topic: str, partition: int, offset: int) -> Message | None:
        """Returns the record at this place, or None where there is none."""
        consumer = self._consumer()
        try:
            if partition not in self._partitions(consumer, topic):
                return None
            consumer.assign([RawPartition(topic, partition, offset)])
            # Brokers that do not say where a partition ends are silent about what lies beyond.
            message = next(self._to_end(consumer, {partition}, silence_s=ONE_RECORD_S), None)
        except _Silent:
            return None
        finally:
            consumer.close()
        return message if message is not None and message.source.offset == offset else None

    def _to_end(
        self, consumer: Consumer, partitions: set[int], *, silence_s: float
    ) -> Iterator[Message]:
        silent_since_us = self._clock.now_us()
        left = set(partitions)
        while left:
            messages = consumer.consume(BATCH, POLL_S)
            now_us = self._clock.now_us()
            if messages:
                silent_since_us = now_us
            elif now_us - silent_since_us > silence_s * 1_000_000:
                raise _Silent(
                    f"{self._settings.bootstrap} sent nothing for {silence_s:g} s; is it still "
                    "running?"
                )
            for raw in messages:
                error = raw.error()
                if error is None:
                    yield self._message(raw, now_us)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(raw.partition() or 0)
                elif error.fatal():
                    raise RetryableError(f"the brokers ended the reading: {error.str()}")

    def _consumer(self) -> Consumer:
        return Consumer(
            client_config(self._settings)
            | {
                # librdkafka wants a name; nothing joins or commits
                "group.id": f"{self._settings.group_prefix}-dlq",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": self._settings.fetch_wait_ms,
                "fetch.message.max.bytes": MESSAGE_BYTES_MAX + PROTOCOL_OVERHEAD_BYTES,
                "queued.max.messages.kbytes": self._settings.prefetch_kib,
                "log_level": 0,
            }
        )

    def _listed(self, consumer: Consumer) -> dict[str, Any]:
        # Asking for one topic by name would make some brokers create it.
        try:
            listed: dict[str, Any] = consumer.list_topics(timeout=self._timeout_s).topics
        except KafkaException as error:
            raise RetryableError(
                f"no broker answers at {self._settings.bootstrap}: {error.args[0].str()}; is it "
                "running?"
            ) from error
        return listed

    def _partitions(self, consumer: Consumer, topic: str) -> list[int]:
        found = self._listed(consumer).get(topic)
        if found is None or found.error is not None:
            raise ConfigError(
                f"there is no topic {topic} at {self._settings.bootstrap}; see `carpool dlq list`"
            )
        return sorted(found.partitions)

    def _bounds(self, consumer: Consumer, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        begins, ends = {}, {}
        for partition in self._partitions(consumer, topic):
            try:
                bounds = consumer.get_watermark_offsets(
                    RawPartition(topic, partition), timeout=self._timeout_s
                )
            except KafkaException as error:
                raise RetryableError(
                    f"{topic}[{partition}] does not say where it ends: {error.args[0].str()}"
                ) from error
            begins[partition], ends[partition] = bounds or (0, 0)
        return begins, ends

    def _message(self, raw: RawMessage, now_us: int) -> Message:
        kind, timestamp_ms = raw.timestamp()
        key, value = raw.key(), raw.value()
        source = Source(
            topic=raw.topic() or "",
            partition=raw.partition() or 0,
            offset=raw.offset() or 0,
            timestamp_ms=0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        )
        return Message(
            source=source,
            key=key.encode() if isinstance(key, str) else key,
            value=value.encode() if isinstance(value, str) else value,
            headers=headers_of(raw),
            received_us=now_us,
        )
