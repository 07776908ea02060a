"""Real brokers, through librdkafka (confluent-kafka): the consumer and the producer of the client seam."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka import Message as RawMessage
from confluent_kafka import TopicPartition as RawPartition

from carpool.clock import Clock
from carpool.errors import CarpoolError, ConfigError, DeploymentError, FencedError, RetryableError
from carpool.kafka.clients import CommitResult, Position, RebalanceListener, TopicPartition, partitions_text
from carpool.kafka.settings import KafkaSettings, consumer_config, producer_config
from carpool.kafka.stage import Message, Output
from schemas.record import Source

log = structlog.get_logger()

LEFT_BEHIND = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
    }
)
"""Commit errors of a member that the group went on without."""

REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
    }
)
"""Delivery errors that no retry mends: the deployment is wrong."""


class LibrdkafkaConsumer:
    """A `ConsumerClient` over a real broker."""

    def __init__(self, settings: KafkaSettings, group: str, clock: Clock) -> None:
        """Connects lazily: a broker that cannot be reached shows in `subscribe`."""
        self._timeout_s = settings.request_timeout_ms / 1_000
        self._bootstrap = settings.bootstrap
        self._requests: deque[tuple[dict[TopicPartition, Position], CommitResult]] = deque()
        self._result: CommitResult | None = None
        self._consumer = Consumer(
            consumer_config(settings, group) | {"on_commit": self._committed},
            logger=_StructlogBridge(),
        )
        self._clock = clock
        self._assigned: set[TopicPartition] = set()
        self._at_end: set[TopicPartition] = set()
        self._paused = False
        self._listener: RebalanceListener | None = None

    def subscribe(self, topic: str, listener: RebalanceListener) -> None:
        """Joins the group. Raises `ConfigError` when the topic is missing, `RetryableError` when no broker answers."""
        try:
            metadata = self._consumer.list_topics(topic, timeout=self._timeout_s)
        except KafkaException as error:
            raise RetryableError(
                f"no broker answers at {self._bootstrap}: {error.args[0].str()}; is it running?"
            ) from error
        found = metadata.topics[topic]
        if found.error is not None:
            raise ConfigError(f"topic {topic} at {self._bootstrap}: {found.error.str()}; run `carpool topics create`")
        self._listener = listener
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _on_assign(self, consumer: Consumer, partitions: list[RawPartition]) -> None:
        # A partition whose commits cannot be read must not be read from a guess: the exception ends the process.
        committed = consumer.committed(partitions, timeout=self._timeout_s) if partitions else []
        positions = {}
        for raw in committed:
            at = TopicPartition(raw.topic, raw.partition)
            if raw.error is not None:
                raise KafkaException(raw.error)
            if raw.offset < 0:
                positions[at] = Position(None, "")
                raw.offset = OFFSET_BEGINNING
            else:
                positions[at] = Position(raw.offset, raw.metadata or "")
        # Only topic, partition and offset: librdkafka refuses to assign with a stored leader epoch of an old leader.
        consumer.incremental_assign([RawPartition(raw.topic, raw.partition, raw.offset) for raw in committed])
        self._assigned |= set(positions)
        if self._paused and committed:
            consumer.pause(committed)
        log.info("partitions assigned", partitions=partitions_text(positions))
        if self._listener is not None:
            self._listener.assigned(positions)

    def _on_revoke(self, consumer: Consumer, partitions: list[RawPartition]) -> None:
        self._drop(consumer, partitions, lost=False)

    def _on_lost(self, consumer: Consumer, partitions: list[RawPartition]) -> None:
        self._drop(consumer, partitions, lost=True)

    def _drop(self, consumer: Consumer, partitions: list[RawPartition], *, lost: bool) -> None:
        gone = frozenset(TopicPartition(raw.topic, raw.partition) for raw in partitions)
        log.info("partitions revoked", partitions=partitions_text(gone), lost=lost)
        self._requests.clear()
        if self._listener is not None:
            self._listener.revoked(gone, lost=lost)
        self._assigned -= gone
        self._at_end -= gone
        consumer.incremental_unassign(partitions)

    def poll(self, timeout_s: float) -> Message | None:
        """Returns the next record, or None after `timeout_s` or at the end of a partition."""
        self._serve_commits()
        try:
            raw = self._consumer.poll(timeout_s)
        except KafkaException as error:
            raise _sorted(error.args[0]) from error
        if raw is None:
            return None
        event = raw.error()
        if event is not None:
            self._event(raw, event)
            return None
        return self._message(raw)

    def _message(self, raw: RawMessage) -> Message:
        topic, partition, offset = raw.topic(), raw.partition(), raw.offset()
        assert topic is not None and partition is not None and offset is not None, "a record has a place"
        self._at_end.discard(TopicPartition(topic, partition))
        kind, timestamp_ms = raw.timestamp()
        source = Source(
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp_ms=0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        )
        headers: Any = raw.headers() or ()
        return Message(
            source=source,
            key=_bytes(raw.key()),
            value=_bytes(raw.value()),
            headers=tuple((name, _bytes(value)) for name, value in headers),
            received_us=self._clock.now_us(),
        )

    def _event(self, raw: RawMessage, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._at_end.add(TopicPartition(raw.topic() or "", raw.partition() or 0))
        elif code == KafkaError._AUTO_OFFSET_RESET:
            raise DeploymentError(
                f"{raw.topic()}[{raw.partition()}] no longer holds the offset to go on from ({error.str()}): records that "
                "were never processed are gone. Lengthen the topic's retention; then reset the group's offsets by hand "
                "(kafka-consumer-groups --reset-offsets) to accept the loss."
            )
        elif error.fatal():
            raise FencedError(f"the consumer cannot go on: {error.str()}; restart the service")
        else:
            log.warning("broker trouble", error=error.str(), topic=raw.topic(), partition=raw.partition())

    def pause(self) -> None:
        """Stops the flow of records from every assigned partition."""
        if not self._paused:
            self._paused = True
            self._consumer.pause(self._raw_assigned())

    def resume(self) -> None:
        """Lets records flow again."""
        if self._paused:
            self._paused = False
            self._consumer.resume(self._raw_assigned())

    def _raw_assigned(self) -> list[RawPartition]:
        return [RawPartition(at.topic, at.partition) for at in sorted(self._assigned)]

    def waiting(self) -> dict[TopicPartition, int]:
        """Returns high watermark less position; 0 where the end was reached (markers are no records)."""
        waiting = {}
        for raw in self._consumer.position(self._raw_assigned()):
            at = TopicPartition(raw.topic, raw.partition)
            if at in self._at_end:
                waiting[at] = 0
                continue
            low, high = self._consumer.get_watermark_offsets(raw, cached=True) or (0, -1)
            position = raw.offset if raw.offset >= 0 else max(low, 0)
            waiting[at] = max(0, high - position)
        return waiting

    def commit(self, offsets: Mapping[TopicPartition, Position], on_result: CommitResult) -> None:
        """Leaves a request, which the next `poll` hands to librdkafka; a later one brings the result."""
        self._requests.append((dict(offsets), on_result))

    def _serve_commits(self) -> None:
        while self._requests and self._result is None:
            offsets, self._result = self._requests.popleft()
            try:
                self._consumer.commit(offsets=_raw_offsets(offsets), asynchronous=True)
            except KafkaException as error:
                self._committed(error.args[0], [])

    def _committed(self, error: KafkaError | None, partitions: list[RawPartition]) -> None:
        """librdkafka's report on a commit, from inside `poll`. That of a blocking commit finds nobody who waits for it."""
        on_result, self._result = self._result, None
        if on_result is not None:
            failed = error or next((raw.error for raw in partitions if raw.error is not None), None)
            on_result(None if failed is None else _sorted(failed))

    def commit_now(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Commits offsets with their metadata, blocking."""
        try:
            results = self._consumer.commit(offsets=_raw_offsets(offsets), asynchronous=False)
        except KafkaException as error:
            raise _sorted(error.args[0]) from error
        for result in results or ():
            if result.error is not None:
                raise _sorted(result.error)

    def close(self) -> None:
        """Leaves the group, serving the last revocation."""
        self._consumer.close()


class LibrdkafkaProducer:
    """A `ProducerClient` over a real broker: idempotent, acks=all, no time-out of its own."""

    def __init__(self, settings: KafkaSettings, overrides: Mapping[str, Any] | None = None) -> None:
        """Connects lazily. `overrides` are librdkafka settings, such as those of a best-effort producer."""
        self._producer = Producer(producer_config(settings) | dict(overrides or {}), logger=_StructlogBridge())

    def produce(self, output: Output, on_delivery: Callable[[CarpoolError | None], None]) -> bool:
        """Queues a record; False when librdkafka's queue is full."""

        def report(error: KafkaError | None, _: RawMessage) -> None:
            on_delivery(None if error is None else _sorted(error, output.topic))

        place = {} if output.partition is None else {"partition": output.partition}
        try:
            self._producer.produce(
                output.topic,
                value=output.value,
                key=output.key,
                headers=list(output.headers),
                on_delivery=report,
                **place,
            )
        except BufferError:
            return False
        except KafkaException as error:
            on_delivery(_sorted(error.args[0], output.topic))
        return True

    def poll(self, timeout_s: float) -> None:
        """Serves deliveries."""
        self._producer.poll(timeout_s)

    def close(self, timeout_s: float) -> int:
        """Flushes; returns what did not make it."""
        left: int = self._producer.flush(timeout_s)
        if left:
            self._producer.purge()
            self._producer.poll(0)
        return left


def _sorted(error: KafkaError, topic: str = "") -> CarpoolError:
    """Sorts a broker's error by what its handler must do."""
    code, where = error.code(), f" ({topic})" if topic else ""
    if code in REFUSED:
        return DeploymentError(
            f"the broker refuses records{where}: {error.str()}; check the topic with `carpool topics describe`"
        )
    if code in LEFT_BEHIND or error.fatal():
        return FencedError(f"the broker no longer takes us for who we were{where}: {error.str()}")
    return RetryableError(f"the broker did not take it{where}: {error.str()}")


def _raw_offsets(offsets: Mapping[TopicPartition, Position]) -> list[RawPartition]:
    return [
        RawPartition(at.topic, at.partition, position.offset if position.offset is not None else -1, position.metadata)
        for at, position in offsets.items()
    ]


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


class _StructlogBridge:
    """Gives librdkafka's own log lines to ours; `confluent_kafka` calls `log(level, format, *args)`."""

    def log(self, level: int, message: str, *args: Any) -> None:
        log.debug("librdkafka", level=level, message=message % args if args else message)
