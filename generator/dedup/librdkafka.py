"""The log of answers of a real broker: two librdkafka consumers that assign partitions to
themselves and never commit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
)
from confluent_kafka import Message as RawMessage
from confluent_kafka import TopicPartition as RawPartition

from carpool.clock import Clock
from carpool.errors import ConfigError, RetryableError
from carpool.kafka.client_config import client_config
from carpool.kafka.raw_headers import headers_of
from carpool.kafka.records import Message
from carpool.kafka.settings import KafkaSettings
from schemas.record import Source
from schemas.topics import ANSWERS, MESSAGE_BYTES_MAX, RETRIEVALS

FETCH_WAIT_MS = 50
"""How long a broker holds back a fetch that finds little: an answer is read so much later, for
fewer requests.
"""
FETCH_BYTES_MIN = 64 * 1024
LOOK_UP_BYTES = 16 * 1024
"""What a look-up of one record asks for; brokers send a whole batch of records, however large, if
it is the first.
"""


class KafkaAnswersReader:
    """An `AnswersReader` over a real broker. One consumer follows; the other looks up offsets and
    single records.
    """

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        """Connects in `open`, not before."""
        self._settings = settings
        self._clock = clock
        self._timeout_s = settings.request_timeout_ms / 1_000
        self._next: dict[int, int] = {}
        self._trouble: str | None = None
        self._is_out_of_date = False
        self._clients: tuple[Consumer, Consumer] | None = None

    @property
    def _follower(self) -> Consumer:
        assert self._clients is not None, "opened before it is read"
        return self._clients[0]

    @property
    def _look_up(self) -> Consumer:
        assert self._clients is not None, "opened before it is read"
        return self._clients[1]

    def open(self) -> None:
        """Connects, and compares the partitions of answers and retrievals: equal ids must lie in
        equal ones.
        """
        if self._clients is None:
            self._clients = (Consumer(self._following()), Consumer(self._looking_up()))
        try:
            topics = self._look_up.list_topics(timeout=self._timeout_s).topics
        except KafkaException as error:
            raise RetryableError(
                f"no broker answers at {self._settings.bootstrap}: {error.args[0].str()}; is it "
                "running?"
            ) from error
        counts = {
            name: len(topics[name].partitions) if name in topics else 0
            for name in (ANSWERS.name, RETRIEVALS.name)
        }
        if len(set(counts.values())) > 1 or 0 in counts.values():
            found = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise ConfigError(
                "the answers to the queries of a partition must lie in the partition of the same "
                f"number, and {found} partitions: make both topics with `carpool topics create`"
            )

    def _following(self) -> dict[str, Any]:
        return self._config() | {
            "isolation.level": "read_committed",
            # Where the log begins later than was read, or has begun anew, all there is must be
            # read.
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.min.bytes": FETCH_BYTES_MIN,
            "queued.max.messages.kbytes": self._settings.prefetch_kib,
        }

    def _looking_up(self) -> dict[str, Any]:
        # Uncommitted: where the log ends must not depend on transactions that are open, and what is
        # looked up was read before.
        return self._config() | {
            "isolation.level": "read_uncommitted",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": self._settings.fetch_wait_ms,
            "fetch.message.max.bytes": LOOK_UP_BYTES,
            "queued.min.messages": 1,
        }

    def _config(self) -> dict[str, Any]:
        return client_config(self._settings) | {
            "group.id": self._settings.group_of(
                "answer-ledger"
            ),  # librdkafka wants a name; nothing joins or commits under it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "log_level": 0,  # what fails is raised; librdkafka's own lines would only bury it
            "receive.message.max.bytes": max(100_000_000, 2 * MESSAGE_BYTES_MAX),
        }

    def begin(self, partition: int, since_ms: int) -> int:
        """Begins at the offset that the broker has for `since_ms`."""
        start = self._start(partition, since_ms)
        try:
            self._follower.incremental_assign([self._place(partition, start)])
        except KafkaException as error:
            raise self._not_read(partition, error.args[0]) from error
        self._next[partition] = start
        return start

    def _start(self, partition: int, since_ms: int) -> int:
        low, high = self._watermarks(partition)
        try:
            (found,) = self._look_up.offsets_for_times(
                [self._place(partition, since_ms)], timeout=self._timeout_s
            )
        except KafkaException as error:
            raise self._not_read(partition, error.args[0]) from error
        if found.error is not None:
            raise self._not_read(partition, found.error)
        if found.offset == OFFSET_END:
            return high
        return int(found.offset) if low <= found.offset <= high else low

    def end(self, partition: int) -> int:
        """Returns the high watermark."""
        return self._watermarks(partition)[1]

    def _watermarks(self, partition: int) -> tuple[int, int]:
        try:
            if self._is_out_of_date:
                # librdkafka goes on believing what a broker said that was coming up, and asks
                # nobody: this makes it ask.
                self._look_up.list_topics(ANSWERS.name, timeout=self._timeout_s)
                self._is_out_of_date = False
            low, high = self._look_up.get_watermark_offsets(
                self._place(partition), timeout=self._timeout_s
            )
        except KafkaException as error:
            raise self._not_read(partition, error.args[0]) from error
        return int(low), int(high)

    def poll(self, timeout_s: float, records_max: int) -> Sequence[Message]:
        """Returns a batch. Trouble that librdkafka reports is raised, once what came before it was
        returned.
        """
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise RetryableError(f"{ANSWERS.name} cannot be read: {trouble}")
        read = []
        for raw in self._follower.consume(records_max, timeout_s):
            error = raw.error()
            if error is None:
                message = self._message(raw)
                self._next[message.source.partition] = message.source.offset + 1
                read.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._next[raw.partition()] = max(self._next[raw.partition()], raw.offset())
            else:
                self._trouble = error.str()
        return read

    def position(self, partition: int) -> int:
        """Returns the position: after the last record, or where librdkafka saw the end."""
        return self._next[partition]

    def fetch(self, partition: int, offset: int) -> Message | None:
        """Looks one record up. Takes a request or two."""
        self._look_up.assign([self._place(partition, offset)])
        try:
            deadline_s = time.monotonic() + self._timeout_s
            while time.monotonic() < deadline_s:
                raw = self._look_up.poll(0.1)
                if raw is None:
                    continue
                error = raw.error()
                if error is None:
                    return self._message(raw) if raw.offset() == offset else None
                if error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                    return None
                if error.fatal():
                    raise self._not_read(partition, error)
        finally:
            self._look_up.unassign()
        raise RetryableError(
            f"{ANSWERS.name}[{partition}] at {offset} was not read within {self._timeout_s:g} s"
        )

    def close(self) -> None:
        """Disconnects."""
        for consumer in self._clients or ():
            consumer.close()
        self._clients = None

    def _message(self, raw: RawMessage) -> Message:
        kind, timestamp_ms = raw.timestamp()
        return Message(
            source=Source(
                topic=raw.topic(),
                partition=raw.partition(),
                offset=raw.offset(),
                timestamp_ms=0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
            ),
            key=raw.key(),
            value=raw.value(),
            headers=headers_of(raw),
            received_us=self._clock.now_us(),
        )

    @staticmethod
    def _place(partition: int, offset: int = 0) -> RawPartition:
        return RawPartition(ANSWERS.name, partition, offset)

    def _not_read(self, partition: int, error: KafkaError) -> RetryableError:
        self._is_out_of_date = True
        return RetryableError(f"{ANSWERS.name}[{partition}] cannot be read: {error.str()}")
