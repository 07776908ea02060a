"""A stand-in for the services: answers every question of a broker, as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from carpool.kafka.admin import create_topics
from carpool.kafka.client_config import client_config, producer_config
from carpool.kafka.settings import KafkaSettings
from schemas.answer import Answer, PartialAnswer
from schemas.codec import decode_query, encode
from schemas.query import Query
from schemas.record import Record, Source
from schemas.topics import ANSWERS, PARTIAL_ANSWERS, QUERIES
from tests.records import an_answer
from tests.waiting import WAIT_S, wait_until

Reply = Callable[[Query, Source], list[Record]]


def answer_to(query: Query, source: Source | None, text: str | None = None, **more: Any) -> Answer:
    told = query.text if text is None else text
    return an_answer(query.query_id, source=source, answer=told, **more)


class Responder:
    """Answers every question of a broker with the records of `reply`, on its own thread."""

    def __init__(
        self, bootstrap: str, topic: str = QUERIES.name, texts: set[str] | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self._topic = topic
        kafka = KafkaSettings(bootstrap=bootstrap)
        create_topics(kafka)
        self.reply: Reply = lambda query, source: [answer_to(query, source)]
        self.seen: list[Query] = []
        self.texts = texts
        """The questions that it sees; None: all, perhaps the last ones of another test, too."""
        self._producer = Producer(producer_config(kafka) | {"linger.ms": 0})
        self._consumer = Consumer(
            client_config(kafka)
            | {
                "group.id": "responder",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "auto.offset.reset": "earliest",
            }
        )
        partitions = self._consumer.list_topics(timeout=WAIT_S).topics[topic].partitions
        self._consumer.assign(
            [TopicPartition(topic, partition, self._end_of(partition)) for partition in partitions]
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _end_of(self, partition: int) -> int:
        at = TopicPartition(self._topic, partition)

        def bounds() -> tuple[int, int] | None:
            try:
                return self._consumer.get_watermark_offsets(at, timeout=10)
            except KafkaException:  # a topic that was just made has no leader for a moment
                return None

        found = wait_until(bounds, f"{self._topic}[{partition}] has a leader")
        assert found is not None
        return found[1]

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()
        self._producer.flush(WAIT_S)

    def write(self, record: Record, key: str) -> None:
        topic = PARTIAL_ANSWERS if isinstance(record, PartialAnswer) else ANSWERS
        value, headers = encode(record, event_id="e", source="test", time_us=1)
        self._producer.produce(topic.name, key=key, value=value, headers=list(headers))
        self._producer.poll(0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is None or message.error() is not None:
                continue
            source = Source(
                topic=self._topic, partition=message.partition(), offset=message.offset()
            )
            query = decode_query(message.value(), tuple(message.headers() or ()), source)
            if self.texts is not None and query.text not in self.texts:
                continue
            self.seen.append(query)
            for record in self.reply(query, source):
                self.write(record, query.query_id)
