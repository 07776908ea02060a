"""Reading what the services write, exactly: every record of some topics from where they ended when
the reader was made.

No consumer group: partitions are assigned, offsets are taken before anything is published, nothing
is skipped. Records are kept as bytes with their time of arrival and decoded after the run, so that
reading costs the run little.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence, Set
from types import TracebackType

import confluent_kafka
import msgspec

from carpool.clock import Clock
from carpool.errors import CarpoolError, RetryableError
from carpool.kafka.client_config import client_config
from carpool.kafka.settings import KafkaSettings
from producers.publish_queries import LOGGER
from schemas.record import Headers
from schemas.topics import MESSAGE_BYTES_MAX

POLL_S = 0.1
TIMEOUT_S = 10.0
MISSING_S = 3.0
"""How long a topic that was just made may be unknown to a broker."""


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it was read. `arrived_us`: epoch microseconds."""

    key: str
    value: bytes
    headers: Headers
    arrived_us: int


class TopicReader:
    """Reads whole topics on a thread. A context manager."""

    def __init__(
        self, kafka: KafkaSettings, topics: Sequence[str], clock: Clock, *, from_beginning: bool
    ) -> None:
        """Takes the offsets to begin at: the ends of now, or the beginnings (of a broker that was
        made for the run).

        Raises `RetryableError` when no broker answers.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[str, list[Arrived]] = {topic: [] for topic in topics}
        self._counts: dict[str, Counter[str]] = {topic: Counter() for topic in topics}
        self._failure: CarpoolError | None = None
        self._last_arrival_s = time.monotonic()
        self._stopping = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            client_config(kafka)
            | {
                # librdkafka wants a name; nothing joins under it
                "group.id": f"carpool-bench-reader-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 500,
                "fetch.message.max.bytes": MESSAGE_BYTES_MAX,
            },
            logger=LOGGER,
        )
        places = [place for topic in topics for place in end_offsets(self._consumer, topic)]
        if from_beginning:
            for place in places:
                place.offset = confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign(places)
        self._thread = threading.Thread(target=self._run, name="topic-reader", daemon=True)

    def records(self, topic: str) -> tuple[Arrived, ...]:
        """Returns what was read of `topic` so far, in order within each partition."""
        with self._lock:
            return tuple(self._records[topic])

    def seen(self, topics: Sequence[str], ids: Set[str]) -> int:
        """Returns how many of `ids` are keys of a record of one of `topics`."""
        with self._lock:
            return len(ids & set().union(*(self._counts[topic].keys() for topic in topics)))

    def distinct(self, topic: str) -> int:
        """Returns how many different keys the records of `topic` had so far. Raises what stopped
        the reader.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return len(self._counts[topic])

    def wait(
        self,
        ids: Set[str],
        topics: Sequence[str],
        *,
        stalled_s: float,
        settle_s: float,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> bool:
        """Waits until every id was seen in one of `topics`, and `settle_s` longer, for what may
        come twice.

        Returns whether all were seen: False after `stalled_s` without any record. Raises what
        stopped the reader.
        """
        started_s = time.monotonic()
        while (seen := self.seen(topics, ids)) < len(ids):
            on_progress(seen)
            time.sleep(
                POLL_S
            )  # not woken by each record: at a high rate that would load the machine being measured
            with self._lock:
                if self._failure is not None:
                    raise self._failure
                if time.monotonic() - max(self._last_arrival_s, started_s) > stalled_s:
                    return False
        on_progress(seen)
        time.sleep(settle_s)
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET or error.fatal():
                    self._fail(
                        f"the topics cannot be read to their end ({error.str()}), so nothing can "
                        "be counted"
                    )
                continue
            arrived_us = self._clock.now_us()
            self._keep(message, arrived_us)

    def _keep(self, message: confluent_kafka.Message, arrived_us: int) -> None:
        key, value = message.key() or b"", message.value() or b""
        record = Arrived(
            key=key.decode(errors="replace") if isinstance(key, bytes) else key,
            value=value if isinstance(value, bytes) else value.encode(),
            headers=tuple(message.headers() or ()),
            arrived_us=arrived_us,
        )
        topic = message.topic() or ""
        with self._lock:
            self._records[topic].append(record)
            self._counts[topic][record.key] += 1
            self._last_arrival_s = time.monotonic()

    def _fail(self, message: str) -> None:
        with self._lock:
            self._failure = CarpoolError(message)

    def __enter__(self) -> TopicReader:
        """Begins to read."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops reading."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()


class _NoTopicError(RetryableError):
    """A broker knows of no such topic."""


def end_offsets(
    consumer: confluent_kafka.Consumer, topic: str
) -> list[confluent_kafka.TopicPartition]:
    """Returns every partition of `topic` with its end as its offset. Blocks up to `TIMEOUT_S`.
    Raises `RetryableError`.
    """
    now_s = time.monotonic()
    until_s, missing_until_s = now_s + TIMEOUT_S, now_s + MISSING_S
    while True:
        try:
            return _end_offsets(consumer, topic)
        except confluent_kafka.KafkaException as error:
            # A topic that was made a moment ago has no leader yet.
            if time.monotonic() > until_s:
                raise RetryableError(
                    f"the brokers do not say where {topic} ends: {error.args[0].str()}; are they "
                    "running?"
                ) from error
        except _NoTopicError:
            # Or not every broker has heard of it.
            if time.monotonic() > missing_until_s:
                raise
        time.sleep(POLL_S)


def _end_offsets(
    consumer: confluent_kafka.Consumer, topic: str
) -> list[confluent_kafka.TopicPartition]:
    # Asked for all: asking for one by name would make some brokers create it.
    found = consumer.list_topics(timeout=TIMEOUT_S).topics.get(topic)
    if found is None:
        raise _NoTopicError(
            f"there is no topic {topic} at the brokers; make the topics: carpool topics create"
        )
    places = [
        confluent_kafka.TopicPartition(topic, partition) for partition in sorted(found.partitions)
    ]
    for place in places:
        place.offset = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)[1]
    return places
