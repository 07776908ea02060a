"""The plain Kafka producer over librdkafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as RawMessage

from carpool.errors import CarpoolError
from carpool.kafka.client_config import producer_config
from carpool.kafka.librdkafka.convert import StructlogBridge, fatal_cause, sort_error
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings

log = structlog.get_logger()


class LibrdkafkaProducer:
    """A `ProducerClient` over a real broker: idempotent, acks=all, no time-out of its own."""

    def __init__(self, settings: KafkaSettings, overrides: Mapping[str, Any] | None = None) -> None:
        """Connects lazily. `overrides`: librdkafka settings, for a best-effort producer."""
        self._settings = settings
        self._producer = Producer(
            producer_config(settings) | dict(overrides or {}), logger=StructlogBridge()
        )

    def produce(self, output: Output, on_delivery: Callable[[CarpoolError | None], None]) -> bool:
        """Queues a record; False when librdkafka's queue is full."""
        topic = self._settings.broker_topic(output.topic)
        needed = f"Write on topic {topic}"

        def report(error: KafkaError | None, _: RawMessage) -> None:
            on_delivery(None if error is None else sort_error(error, needed, is_record=True))

        try:
            self._producer.produce(topic, on_delivery=report, **produce_arguments(output))
        except BufferError:
            return False
        except KafkaException as error:
            on_delivery(sort_error(error.args[0], needed, is_record=True))
        return True

    def poll(self, timeout_s: float) -> None:
        """Serves deliveries. An error that is fatal to the producer shows in each of them."""
        self._serve(lambda: self._producer.poll(timeout_s))

    def close(self, timeout_s: float) -> int:
        """Flushes; returns what did not make it."""
        self._serve(lambda: self._producer.flush(timeout_s))
        left = len(self._producer)
        if left:
            self._producer.purge()
            self.poll(0)
        return left

    def _serve(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (KafkaException, SystemError) as error:
            log.warning("a Kafka producer cannot continue", error=fatal_cause(error).str())


def produce_arguments(output: Output) -> dict[str, Any]:
    """Returns the arguments of `Producer.produce` except topic and callback."""
    place = {} if output.partition is None else {"partition": output.partition}
    return {"value": output.value, "key": output.key, "headers": list(output.headers), **place}
