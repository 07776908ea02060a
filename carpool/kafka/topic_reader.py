"""Reads topics without a consumer group: by offset, and without commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
)
from confluent_kafka import Message as RawMessage
from confluent_kafka import TopicPartition as RawPartition

from carpool.clock import Clock
from carpool.errors import ConfigError, RetryableError
from carpool.kafka.client_config import METADATA_REFRESH_MS, PROTOCOL_OVERHEAD_BYTES, reader_config
from carpool.kafka.cluster import cluster_metadata, is_of_right, told
from carpool.kafka.partitioner import partition_of
from carpool.kafka.raw_records import message_of, place_of_event, raw_partition
from carpool.kafka.records import Message, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_ids import TopicIds
from carpool.kafka.unreadable import UNREADABLE, UnreadableBatches, pass_over
from schemas.topics import MESSAGE_BYTES_MAX

log = logging.getLogger(__name__)  # structlog imports rich, and clients need neither

POLL_S = 0.05
END_WAIT_MS = 10
"""How long brokers wait at the end of a log, which ends the reading: for nothing."""
BATCH = 500
RETRY_S = 0.1
LEADERLESS = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Errors of a partition that was just created, or whose leader is changing."""


class ReadBatch(NamedTuple):
    """Records in the order of each partition, partitions whose end was reached, and errors.

    `passed_over`: the offset after records that cannot be unpacked, by partition.
    """

    messages: list[Message]
    ends: dict[TopicPartition, int]
    errors: list[KafkaError]
    passed_over: dict[TopicPartition, int]


class SilentBrokersError(RetryableError):
    """The brokers sent neither a record nor the end of a partition."""


class TopicReader:
    """A librdkafka consumer that joins no group. Every call blocks; one thread at a time."""

    def __init__(
        self,
        settings: KafkaSettings,
        clock: Clock,
        *,
        name: str,
        timeout_s: float | None = None,
        config: Mapping[str, Any] | None = None,
        outlives_topics: bool = True,
    ) -> None:
        """Connects lazily. `name` is for the brokers' logs.

        A topic that is deleted and made again is read from its beginning, unless
        `outlives_topics` is false: then `poll` raises `ConfigError`. A request takes at most
        `timeout_s`, by default the request time-out of the settings. `config` replaces defaults of
        librdkafka, which read committed records only.
        """
        self._settings = settings
        self._clock = clock
        self._timeout_s = settings.request_timeout_ms / 1_000 if timeout_s is None else timeout_s
        self._outlives_topics = outlives_topics
        self._stale_topics: set[str] = set()
        self._unreadable = UnreadableBatches()
        self._ids = TopicIds(settings, every_s=METADATA_REFRESH_MS / 1_000)
        self._consumer = Consumer(reader_config(settings, name) | dict(config or {}))

    def topics(self) -> dict[str, tuple[int, ...]]:
        """Returns every topic with our prefix and its partitions; without a prefix, every topic.

        Raises `RetryableError` without a broker.
        """
        metadata = cluster_metadata(self._consumer, self._settings, self._timeout_s)
        return {
            self._settings.logical_topic(name): tuple(sorted(topic.partitions))
            for name, topic in metadata.topics.items()
            if topic.error is None and name.startswith(self._settings.broker_topic(""))
        }

    def partitions(self, topic: str, *, patience_s: float = 0.0) -> list[TopicPartition]:
        """Returns the partitions of a topic. Raises `ConfigError` when it does not exist.

        `patience_s`: how long a topic that was just created may be unknown.
        """
        until_s = time.monotonic() + patience_s
        while (found := self.topics().get(topic)) is None:
            if time.monotonic() >= until_s:
                raise ConfigError(
                    f"there is no topic {self._settings.broker_topic(topic)} at "
                    f"{self._settings.bootstrap}, or these credentials lack Describe on it: "
                    "`carpool topics create` makes the topics, `carpool acls` prints the rights"
                )
            time.sleep(RETRY_S)
        return [TopicPartition(topic, number) for number in found]

    def bounds(self, at: TopicPartition, *, patience_s: float = 0.0) -> tuple[int, int]:
        """Returns the first offset of a partition and the offset after its last record.

        Readers of committed records see the last stable offset as the end. `patience_s`: how long
        a partition may be without a leader. Raises `RetryableError`.
        """
        until_s = time.monotonic() + patience_s
        while True:
            try:
                if at.topic in self._stale_topics:
                    # librdkafka would use an answer with too few partitions until its next refresh.
                    self._consumer.list_topics(
                        self._settings.broker_topic(at.topic), timeout=self._timeout_s
                    )
                    self._stale_topics.discard(at.topic)
                low, high = self._consumer.get_watermark_offsets(
                    self._raw(at), timeout=self._timeout_s
                ) or (0, 0)
                return int(low), int(high)
            except KafkaException as error:
                if time.monotonic() >= until_s or error.args[0].code() not in LEADERLESS:
                    raise self.unreadable(at, error.args[0]) from error
            time.sleep(RETRY_S)

    def first_since(self, at: TopicPartition, since_ms: int) -> int:
        """Returns the offset of the first record at or after `since_ms`, epoch milliseconds.

        The end where there is none; the beginning from brokers that have no offsets by time.
        """
        low, high = self.bounds(at)
        try:
            (found,) = self._consumer.offsets_for_times(
                [self._raw(at, since_ms)], timeout=self._timeout_s
            )
        except KafkaException as error:
            raise self.unreadable(at, error.args[0]) from error
        if found.error is not None:
            raise self.unreadable(at, found.error)
        if found.offset == OFFSET_END:
            return high
        return int(found.offset) if low <= found.offset <= high else low

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Begins to read these partitions at these offsets, in addition to earlier ones.

        Raises `RetryableError`.
        """
        ids = {at.topic: topic_id for at, topic_id in self._ids.begun.items() if topic_id}
        if missing := {at.topic for at in starts} - ids.keys():
            ids |= self._ids.now(missing)
        try:
            self._consumer.incremental_assign(
                [self._raw(at, offset) for at, offset in starts.items()]
            )
        except KafkaException as error:
            raise self.unreadable(next(iter(starts)), error.args[0]) from error
        self._ids.begun |= {at: ids.get(at.topic) for at in starts}

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops reading these partitions."""
        gone = frozenset(partitions)
        self._consumer.incremental_unassign([self._raw(at) for at in gone])
        self._ids.forget(gone)

    def poll(self, records_max: int, timeout_s: float) -> ReadBatch:
        """Returns what was fetched, at most `records_max` records; waits `timeout_s` for the first.

        Passes over records that cannot be unpacked, after some seconds.
        """
        if again := self._ids.made_again():
            if not self._outlives_topics:
                raise ConfigError(f"topic {again[0].topic} was deleted and made again")
            log.warning("topics were made again: reading %s from the beginning", again)
            self._consumer.incremental_unassign([self._raw(at) for at in again])
            self._consumer.incremental_assign([self._raw(at, OFFSET_BEGINNING) for at in again])
        batch = ReadBatch([], {}, [], {})
        found = self._consumer.consume(1, timeout_s)
        if found and records_max > 1:
            found += self._consumer.consume(records_max - 1, 0)
        for raw in found:
            error = raw.error()
            if error is None:
                batch.messages.append(message_of(self._settings, raw, self._clock.now_us()))
            elif error.code() == KafkaError._PARTITION_EOF:
                batch.ends[place_of_event(self._settings, raw)] = raw.offset() or 0
            elif error.code() in UNREADABLE:
                self._pass_over(raw, error, batch)
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # no group is joined
                batch.errors.append(error)
        return batch

    def _pass_over(self, raw: RawMessage, error: KafkaError, batch: ReadBatch) -> None:
        at, offset = place_of_event(self._settings, raw), raw.offset() or 0
        if not self._unreadable.failed(at, offset, self._clock.now_us()):
            return
        try:
            end = pass_over(self._consumer, self._settings, at, offset)
        except (KafkaException, RetryableError):
            return  # tried again at the next error
        batch.passed_over[at] = end
        log.warning("records cannot be unpacked and are passed over: %s", error.str())

    def read_to_end(self, partitions: Iterable[TopicPartition]) -> Iterator[Message]:
        """Yields every record of these partitions, from their beginnings to their present ends.

        Raises `SilentBrokersError` after the time-out of a request without a record, and
        `RetryableError` where records cannot be read.
        """
        left = set(partitions)
        silent_since_s = time.monotonic()
        self._consumer.assign([self._raw(at, OFFSET_BEGINNING) for at in sorted(left)])
        while left:
            at, batch = next(iter(left)), self.poll(BATCH, POLL_S)
            if batch.messages or batch.ends or batch.passed_over:
                silent_since_s = time.monotonic()
            elif time.monotonic() - silent_since_s > self._timeout_s:
                raise SilentBrokersError(
                    f"{self._settings.bootstrap} sent nothing for {self._timeout_s:g} s; is it "
                    "still running?"
                )
            yield from batch.messages
            left -= batch.ends.keys()
            for error in batch.errors:
                if is_final(error):
                    raise self.unreadable(at, error)

    def read_range(self, at: TopicPartition, start: int, end: int) -> Iterator[Message]:
        """Yields the records of a partition from `start` on, below `end`. Raises as `read_to_end`.

        Replaces the assigned partitions.
        """
        self._consumer.assign([self._raw(at, start)])
        silent_since_s = time.monotonic()
        position = start
        while position < end:
            batch = self.poll(BATCH, POLL_S)
            for message in batch.messages:
                position = message.source.offset + 1
                if message.source.offset < end:
                    yield message
            position = max([position, *batch.ends.values(), *batch.passed_over.values()])
            if batch.messages or batch.ends:
                silent_since_s = time.monotonic()
            elif time.monotonic() - silent_since_s > self._timeout_s:
                raise SilentBrokersError(f"{self._shown(at)} sent nothing: is it there?")
            for error in filter(is_final, batch.errors):
                raise self.unreadable(at, error)

    def read_one(self, at: TopicPartition, offset: int, *, timeout_s: float) -> Message | None:
        """Returns the record at this offset; None where it was deleted or never existed.

        Replaces the assigned partitions. Raises `SilentBrokersError` after `timeout_s`: brokers
        without transactions do not answer beyond the end of a partition.
        """
        until_s = time.monotonic() + timeout_s
        self._consumer.assign([self._raw(at, offset)])
        try:
            while time.monotonic() < until_s:
                batch = self.poll(1, POLL_S)
                if batch.messages:
                    found = batch.messages[0]
                    return found if found.source.offset == offset else None
                codes = [error.code() for error in batch.errors]
                if batch.ends or KafkaError._AUTO_OFFSET_RESET in codes:
                    return None
                for error in filter(is_final, batch.errors):
                    raise self.unreadable(at, error)
        finally:
            self._consumer.unassign()
        raise SilentBrokersError(
            f"{self._shown(at)} at {offset} was not read within {timeout_s:g} s"
        )

    def unreadable(self, at: TopicPartition, error: KafkaError) -> RetryableError:
        """Returns the error of a partition, and marks the metadata of its topic as stale."""
        self._stale_topics.add(at.topic)
        right = f"Read on topic {self._settings.broker_topic(at.topic)}"
        return RetryableError(f"{self._shown(at)} cannot be read: {told(error, right)}")

    def _raw(self, at: TopicPartition, offset: int = OFFSET_INVALID) -> RawPartition:
        return raw_partition(self._settings, at, offset)

    def _shown(self, at: TopicPartition) -> str:
        return f"{self._settings.broker_topic(at.topic)}[{at.partition}]"

    def close(self) -> None:
        """Disconnects."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_topic(
    settings: KafkaSettings, clock: Clock, topic: str, *, name: str, keys: Iterable[bytes] = ()
) -> Iterator[Message]:
    """Yields every committed record of a topic, those of each partition in order. Blocks.

    `keys`: only their partitions are read. Raises `ConfigError` for a topic that does not exist,
    `RetryableError` as `TopicReader` does.
    """
    config = {
        "auto.offset.reset": "earliest",  # retention may delete records meanwhile
        "fetch.wait.max.ms": END_WAIT_MS,
        "fetch.message.max.bytes": MESSAGE_BYTES_MAX + PROTOCOL_OVERHEAD_BYTES,
    }
    with TopicReader(settings, clock, name=name, config=config) as reader:
        partitions = reader.partitions(topic)
        numbers = {partition_of(key, len(partitions)) for key in keys} or range(len(partitions))
        yield from reader.read_to_end(partitions[number] for number in numbers)


def is_final(error: KafkaError) -> bool:
    """Returns whether reading cannot continue; librdkafka retries after other errors."""
    is_out_of_range = error.code() == KafkaError._AUTO_OFFSET_RESET
    return bool(is_out_of_range or is_of_right(error) or error.fatal())
