"""Reads answers without a consumer group: all partitions, from their end before the question.

In a consumer group, a rebalance could take away the partition of an awaited answer. The cost: each
client receives every answer, and decodes only its own.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future

from carpool.clock import SystemClock
from carpool.errors import ConfigError, RetryableError
from carpool.kafka.cluster import is_of_right, told
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from producers.publish_queries import LOGGER
from schemas.record import Headers
from schemas.topics import ANSWERS, PARTIAL_ANSWERS, QUERIES

Arrived = Callable[[str, bytes, bytes, Headers], None]
"""Called with topic, key, value and headers of every record, on the reader's thread."""

FETCH_WAIT_MS = 10
POLL_S = 0.05


class AnswerReader:
    """Reads `rag.answers.v1`, and `rag.answers.partial.v1` from the first `ask_stream` on."""

    def __init__(self, kafka: KafkaSettings, arrived: Arrived) -> None:
        self._kafka = kafka
        self._timeout_s = kafka.request_timeout_ms / 1_000
        self._arrived = arrived
        self._reader = TopicReader(
            kafka,
            SystemClock(),
            name=f"client-{uuid.uuid4()}",
            config={
                "client.id": "carpool-client",
                "enable.partition.eof": False,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                # If the offset is gone (a new broker), all answers are read: each is
                # matched to its question.
                "auto.offset.reset": "earliest",
                "log_level": 6,
                "logger": LOGGER,
            },
        )
        self.trouble = ""  # why no answer comes, if that is known
        self._partitions: dict[str, tuple[int, ...]] = {}
        self._followed: set[str] = set()
        self._follows: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="carpool-answers", daemon=True)

    def start(self) -> None:
        """Begins to read at the end of `rag.answers.v1`. Blocks.

        Raises `RetryableError` when no broker answers, `ConfigError` when a topic is missing.
        """
        try:
            self._partitions = self._reader.topics()
            missing = [
                self._kafka.broker_topic(topic.name)
                for topic in (QUERIES, ANSWERS)
                if topic.name not in self._partitions
            ]
            if missing:
                raise ConfigError(
                    f"{self._kafka.bootstrap} has no topic {', '.join(missing)}, or these "
                    "credentials lack Describe on it. Make the topics with `carpool topics "
                    "create`, or start everything with `carpool up`; `carpool acls application` "
                    "prints the rights."
                )
            self._follow(ANSWERS.name)
        except BaseException:
            self._reader.close()
            raise
        self._thread.start()

    def follow_partials(self) -> None:
        """Begins to read partial answers too, from their end, if their topic exists.

        Thread-safe. The first call blocks. Raises `ConfigError`.
        """
        if PARTIAL_ANSWERS.name in self._partitions and PARTIAL_ANSWERS.name not in self._followed:
            # The reader's thread makes all calls: another thread would wait for its polls.
            done: Future[None] = Future()
            self._follows.put(done)
            done.result(
                timeout=POLL_S + self._timeout_s * (1 + len(self._partitions[PARTIAL_ANSWERS.name]))
            )

    def close(self) -> None:
        """Stops reading. Blocks for a moment."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
            self._reader.close()

    def _follow(self, topic: str) -> None:
        # The end is asked for now, not at the first fetch: later records are read for certain.
        places = [TopicPartition(topic, partition) for partition in self._partitions[topic]]
        try:
            self._reader.add(
                {at: self._reader.bounds(at, patience_s=self._timeout_s)[1] for at in places}
            )
        except RetryableError as error:
            raise ConfigError(
                f"{error}: its leader may be down. See `carpool topics check`."
            ) from error
        self._followed.add(topic)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            while not self._follows.empty():
                self._follow_for(self._follows.get())
            # librdkafka retries after an error (a leader moves, a broker is away), and deadlines
            # bound the wait.
            batch = self._reader.poll(1, POLL_S)
            for error in filter(is_of_right, batch.errors):  # librdkafka says it once
                topics = " or ".join(map(self._kafka.broker_topic, sorted(self._followed)))
                self.trouble = f" {told(error, f'Read on topic {topics}')}."
            for message in batch.messages:
                self.trouble = ""
                if message.key is not None and message.value:
                    self._arrived(message.source.topic, message.key, message.value, message.headers)

    def _follow_for(self, done: Future[None]) -> None:
        try:
            if PARTIAL_ANSWERS.name not in self._followed:
                self._follow(PARTIAL_ANSWERS.name)
        except ConfigError as error:
            done.set_exception(error)
        else:
            done.set_result(None)
