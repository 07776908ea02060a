"""Publishes questions and documents, and reports the acknowledgement of each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import confluent_kafka

from carpool.kafka.client_config import producer_config
from carpool.kafka.cluster import is_of_right, told
from carpool.kafka.settings import KafkaSettings
from producers.build_query import QueryRecord
from producers.errors import PublishError
from producers.match_answers import Place
from producers.settings import ClientSettings

LOGGER = logging.getLogger("carpool.client")
LOGGER.addHandler(logging.NullHandler())  # the application decides about librdkafka's log lines

QUEUE_KIB = 65_536
"""Memory for records that are not yet sent."""
WARM_UP_REQUESTS = 3
WARM_UP_PAUSE_S = 0.02
WARM_UP_S = 0.5

Placed = Callable[[Place | None, PublishError | None], None]


class Publisher:
    """A Kafka producer of records. Thread-safe. Its thread calls `on_placed`."""

    def __init__(self, kafka: KafkaSettings, client: ClientSettings) -> None:
        self._kafka = kafka
        self._producer = confluent_kafka.Producer(
            producer_config(kafka)
            | {
                "message.timeout.ms": client.publish_timeout_ms,
                "queue.buffering.max.kbytes": QUEUE_KIB,
                "client.id": "carpool-client",
            },
            logger=LOGGER,
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="carpool-publisher", daemon=True)
        self._thread.start()

    def send(self, record: QueryRecord, on_placed: Placed) -> None:
        """Queues a record; does not block. Raises `PublishError` when the queue is full, or closed.

        `on_placed` is called once, from another thread, with partition and offset of the record
        (None: the broker did not say), or with the error.
        """
        if self._stopping.is_set():
            raise PublishError("the client is closed, so nothing was sent")
        topic = self._kafka.broker_topic(record.topic)

        def delivered(
            error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
        ) -> None:
            if error is not None:
                on_placed(None, _publish_error(error, f"Write on topic {topic}"))
                return
            partition, offset = message.partition(), message.offset()
            on_placed(
                (partition, offset)
                if partition is not None and offset is not None and offset >= 0
                else None,
                None,
            )

        try:
            self._producer.produce(
                topic,
                key=record.query_id.encode(),
                value=record.value,
                headers=list(record.headers),
                on_delivery=delivered,
            )
        except BufferError:
            raise PublishError(
                "the queue of unsent records is full: they are published faster than the brokers "
                "take them. This one was not sent; send more slowly"
            ) from None
        except confluent_kafka.KafkaException as error:
            raise _publish_error(error.args[0], f"Write on topic {topic}") from error

    def flush(self, timeout_s: float) -> int:
        """Waits until all are acknowledged, up to `timeout_s`; returns how many are not. Blocks."""
        return int(self._producer.flush(timeout_s))

    def close(self, timeout_s: float) -> int:
        """Flushes and stops; returns how many records were not acknowledged. Blocks."""
        unsent = self.flush(timeout_s)
        self._stopping.set()
        self._thread.join()
        return unsent

    def _serve(self) -> None:
        self._warm_up()
        while not self._stopping.is_set():
            self._producer.poll(0.1)

    def _warm_up(self) -> None:
        """Makes librdkafka ask for its producer id now; else the first question waits a second.

        Its main thread asks when it wakes after the connection was made. A reply of the brokers
        wakes it.
        """
        for _ in range(WARM_UP_REQUESTS):
            try:
                self._producer.list_topics(timeout=WARM_UP_S)  # to name a topic may make it
            except confluent_kafka.KafkaException:
                return  # no broker answers yet
            if self._stopping.wait(WARM_UP_PAUSE_S):
                return


def _publish_error(error: confluent_kafka.KafkaError, right: str) -> PublishError:
    if error.fatal():
        return PublishError(
            f"the Kafka producer failed ({error.str()}), perhaps because the broker lost its data: "
            "open a new client.",
            is_final=True,
        )
    return PublishError(
        f"the brokers did not take the record ({told(error, right)}): it is not known to be in "
        "its topic. Check that the brokers are up (`carpool topics check`), and publish again.",
        is_final=is_of_right(error),
    )
