"""Records everything that is written to some topics, with the time of arrival.

No consumer group: topics are read from their beginning, so nothing is skipped. Values stay bytes
until after the run, so that reading costs the run little.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence, Set

import msgspec
from confluent_kafka import OFFSET_BEGINNING

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.client_config import FETCH_WAIT_MS
from carpool.kafka.records import Message
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader, is_final
from schemas.record import Headers, header
from schemas.topics import ANSWERS, MESSAGE_BYTES_MAX

POLL_S = 0.1
TIMEOUT_S = 180.0
STALLED_S = 60.0
EVENT_ID_HEADER = "ce_id"
TOPIC_PATIENCE_S = 30.0
"""How long a topic that was just created may be unknown to a broker."""


class ReceivedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it was read. `received_us`: epoch microseconds."""

    key: str
    value: bytes
    headers: Headers
    received_us: int


class TopicRecorder:
    """Reads whole topics on a thread. A context manager."""

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Sequence[str],
        clock: Clock,
        fetch_wait_ms: int = FETCH_WAIT_MS,
    ) -> None:
        """Raises `RetryableError` when no broker answers, `ConfigError` for an unknown topic."""
        self._lock = threading.Lock()
        self._records: dict[str, list[ReceivedRecord]] = {topic: [] for topic in topics}
        self._keys: dict[str, set[str]] = {topic: set() for topic in topics}
        self._event_ids: dict[str, set[bytes | None]] = {topic: set() for topic in topics}
        self._failure: CarpoolError | None = None
        self._last_record_s = time.monotonic()
        self._stopping = threading.Event()
        self._reader = TopicReader(
            kafka,
            clock,
            name="bench-recorder",
            timeout_s=TIMEOUT_S,
            config={
                "enable.partition.eof": False,
                "fetch.wait.max.ms": fetch_wait_ms,
                "fetch.message.max.bytes": MESSAGE_BYTES_MAX,
            },
        )
        for topic in topics:
            places = self._reader.partitions(topic, patience_s=TOPIC_PATIENCE_S)
            self._reader.add(dict.fromkeys(places, OFFSET_BEGINNING))
        self._thread = threading.Thread(target=self._run, name="topic-recorder", daemon=True)

    def records(self, topic: str) -> tuple[ReceivedRecord, ...]:
        """Returns the records of `topic` so far, in order within each partition."""
        with self._lock:
            return tuple(self._records[topic])

    def seen(self, topics: Sequence[str], ids: Set[str]) -> int:
        """Returns how many of `ids` are keys of a record in `topics`. Raises what stopped it."""
        with self._lock:
            self._require_whole()
            return len(ids & set().union(*(self._keys[topic] for topic in topics)))

    def distinct(self, topic: str) -> int:
        """Returns the number of different events in `topic`. Raises what stopped the recorder."""
        with self._lock:
            self._require_whole()
            return len(self._event_ids[topic])

    def _require_whole(self) -> None:
        if self._failure is not None:
            raise self._failure

    def wait(
        self,
        ids: Set[str],
        topics: Sequence[str] = (ANSWERS.name,),
        *,
        stalled_s: float = STALLED_S,
        settle_s: float = 0.0,
    ) -> None:
        """Waits until every id was seen in one of `topics`, and `settle_s` longer for duplicates.

        Gives up after `stalled_s` without any record. Raises what stopped the recorder.
        """
        started_s = time.monotonic()
        while self.seen(topics, ids) < len(ids):
            # Polled: waking for each record would load the machine that is measured.
            time.sleep(POLL_S)
            if time.monotonic() - max(self._last_record_s, started_s) > stalled_s:
                return
        time.sleep(settle_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            batch = self._reader.poll(1, POLL_S)
            for error in filter(is_final, batch.errors):
                with self._lock:
                    self._failure = CarpoolError(
                        f"the topics cannot be read to their end ({error.str()}), so nothing can "
                        "be counted"
                    )
            for message in batch.messages:
                self._keep(message)

    def _keep(self, message: Message) -> None:
        record = ReceivedRecord(
            key=(message.key or b"").decode(errors="replace"),
            value=message.value or b"",
            headers=message.headers,
            received_us=message.received_us,
        )
        topic = message.source.topic
        with self._lock:
            self._records[topic].append(record)
            self._keys[topic].add(record.key)
            self._event_ids[topic].add(header(record.headers, EVENT_ID_HEADER))
            self._last_record_s = time.monotonic()

    def __enter__(self) -> TopicRecorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._reader.close()
