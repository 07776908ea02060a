"""Reading answers without a consumer group: every partition is assigned, from the end as it was
before the question.

A consumer group would hand partitions to whoever joins, so an asker could lose the one that holds
its answer. Here each client reads all partitions for itself; rebalances do not exist. Its cost is
that each client receives every answer, of which it decodes only its own.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future

import confluent_kafka

from carpool.errors import ConfigError
from carpool.kafka.client_config import client_config
from carpool.kafka.raw_headers import headers_of
from carpool.kafka.settings import KafkaSettings
from producers.publish_queries import LOGGER
from producers.settings import ClientSettings
from schemas.record import Headers
from schemas.topics import ANSWERS, PARTIAL_ANSWERS, QUERIES

Arrived = Callable[[str, bytes, bytes, Headers], None]
"""Called with topic, key, value and headers of every record read, from the reader's thread."""


POLL_S = 0.05
RETRY_S = 0.1
LEADERLESS = (
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
    confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE,
    confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
)


class AnswerReader:
    """A librdkafka consumer of `rag.answers.v1`, and of `rag.answers.partial.v1` once somebody asks
    for streaming.
    """

    def __init__(self, kafka: KafkaSettings, client: ClientSettings, arrived: Arrived) -> None:
        self._kafka = kafka
        self._timeout_s = client.connect_timeout_ms / 1_000
        self._arrived = arrived
        self._consumer = confluent_kafka.Consumer(
            client_config(kafka)
            | {
                "client.id": "carpool-client",
                # librdkafka wants a name; nothing joins or commits under it
                "group.id": f"carpool-client-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": client.fetch_wait_ms,
                # An offset that is gone (a broker begun anew): read all there is, since answers are
                # matched to their record.
                "auto.offset.reset": "earliest",
            },
            logger=LOGGER,
        )
        self._partitions: dict[str, tuple[int, ...]] = {}
        self._followed: set[str] = set()
        self._follows: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="carpool-answers", daemon=True)

    def start(self) -> None:
        """Checks that brokers and topics are there, and begins to read at the end of
        `rag.answers.v1`. Blocks.

        Raises `ConfigError`.
        """
        try:
            self._partitions = self._topics()
            missing = [
                topic.name for topic in (QUERIES, ANSWERS) if topic.name not in self._partitions
            ]
            if missing:
                raise ConfigError(
                    f"{self._kafka.bootstrap} has no topic {', '.join(missing)}: nothing can be "
                    "asked here yet. Make the topics"
                    " with `carpool topics create`, or start everything with `carpool up`."
                )
            self._follow(ANSWERS.name)
        except BaseException:
            self._consumer.close()
            raise
        self._thread.start()

    def follow_partials(self) -> None:
        """Begins to read partial answers too, from their end as it is now; where their topic does
        not exist, nothing.

        Thread-safe. Blocks at the first call. Raises `ConfigError`.
        """
        if PARTIAL_ANSWERS.name in self._partitions and PARTIAL_ANSWERS.name not in self._followed:
            # Calls of one consumer wait for each other, and a poll follows a poll: only the
            # reader's thread may make them.
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
            self._consumer.close()

    def _topics(self) -> dict[str, tuple[int, ...]]:
        """Every topic and its partitions. Asking for one by name would make some brokers create
        it.
        """
        try:
            listed = self._consumer.list_topics(timeout=self._timeout_s)
        except confluent_kafka.KafkaException as error:
            raise ConfigError(
                f"no broker at {self._kafka.bootstrap} answered within {self._timeout_s:g} s "
                f"({error.args[0].str()}). Start one (`carpool up` brings its own), or give the "
                "right address with --bootstrap or CARPOOL_KAFKA_BOOTSTRAP."
            ) from error
        return {
            name: tuple(sorted(topic.partitions))
            for name, topic in listed.topics.items()
            if topic.error is None
        }

    def _follow(self, topic: str) -> None:
        # Asked for now, not at the first fetch: what is published after this call is read for
        # certain.
        ends = [
            confluent_kafka.TopicPartition(topic, partition, self._end_of(topic, partition))
            for partition in self._partitions[topic]
        ]
        self._consumer.incremental_assign(ends)
        self._followed.add(topic)

    def _end_of(self, topic: str, partition: int) -> int:
        place = confluent_kafka.TopicPartition(topic, partition)
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                _, end = self._consumer.get_watermark_offsets(place, timeout=self._timeout_s)
                return int(end)
            except confluent_kafka.KafkaException as error:
                # A topic that was just made, or whose leader moves, has none for a moment.
                if time.monotonic() > deadline_s or error.args[0].code() not in LEADERLESS:
                    raise ConfigError(
                        f"{self._kafka.bootstrap} does not say where {topic}[{partition}] ends "
                        f"({error.args[0].str()}): its"
                        " leader may be down. See `carpool topics describe`."
                    ) from error
                time.sleep(RETRY_S)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            while not self._follows.empty():
                self._follow_for(self._follows.get())
            message = self._consumer.poll(POLL_S)
            # Errors here are transient (a leader moves, a broker is away): librdkafka goes on, and
            # deadlines bound the wait.
            if message is None or message.error() is not None:
                continue
            key, value = message.key(), message.value()
            if isinstance(key, bytes) and value:
                self._arrived(message.topic(), key, value, headers_of(message))

    def _follow_for(self, done: Future[None]) -> None:
        try:
            if PARTIAL_ANSWERS.name not in self._followed:
                self._follow(PARTIAL_ANSWERS.name)
        except ConfigError as error:
            done.set_exception(error)
        else:
            done.set_result(None)
