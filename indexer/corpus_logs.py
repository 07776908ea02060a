"""Looks into the logs of documents and of vectors: ids, last records, what comes next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property

from confluent_kafka.admin import ConfigResource, ResourceType

from carpool.clock import Clock
from carpool.kafka.cluster import quiet_admin
from carpool.kafka.corpus_checks import number_of
from carpool.kafka.librdkafka.ask_brokers import settings_of
from carpool.kafka.records import Message, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_ids import TopicIds
from carpool.kafka.topic_reader import END_WAIT_MS, TopicReader
from schemas.record import Source
from schemas.topics import DOCUMENTS, VECTORS

LAST_RECORDS = 8
"""Offsets that are read to find the last record: markers of transactions have offsets, too.

Where all of them are markers, eight times as many are read.
"""
CONFIG = {
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": END_WAIT_MS,
}


class CorpusLogs:
    """Committed records only. Thread-safe. Every call blocks, and raises `RetryableError`."""

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        """Connects with the first call."""
        self._settings = settings
        self._clock = clock
        self._ids = TopicIds(settings)
        self._lock = threading.Lock()
        self.partitions = 0
        """How many the documents have: for life, since a key must stay in its partition."""
        self.nulls_ms = DOCUMENTS.nulls_ms or 0
        """How long brokers keep null records of documents."""

    @cached_property
    def _reader(self) -> TopicReader:
        return self._new_reader()

    def _new_reader(self) -> TopicReader:
        return TopicReader(self._settings, self._clock, name="indexer-looks", config=CONFIG)

    def open(self) -> None:
        """Asks for `partitions` and `nulls_ms`. Raises `ConfigError` without a topic."""
        topic = ConfigResource(ResourceType.TOPIC, self._settings.broker_topic(DOCUMENTS.name))
        timeout_s = self._settings.request_timeout_ms / 1_000
        found = settings_of(quiet_admin(self._settings), [topic], timeout_s).get(topic.name, {})
        self.nulls_ms = number_of(found, "delete.retention.ms") or self.nulls_ms
        with self._lock:
            self.partitions = len(self._reader.partitions(DOCUMENTS.name))

    def topic_id(self) -> str:
        """Returns the id of the topic of documents; "" from brokers that have none."""
        with self._lock:
            return self._ids.now([DOCUMENTS.name]).get(DOCUMENTS.name, "")

    def has_more(self, source: Source) -> bool:
        """Returns whether a record comes after `source` in its partition."""
        at = TopicPartition(source.topic, source.partition)
        with self._lock, closing(self._reader.read_to_end({at: source.offset + 1})) as records:
            return next(records, None) is not None

    def last_vectors(self, partition: int) -> Message | None:
        """Returns the last record of a partition of vectors; None where it is empty."""
        at, count, last = TopicPartition(VECTORS.name, partition), LAST_RECORDS, None
        with self._lock:
            low, high = self._reader.bounds(at)
            start = high
            while last is None and start > low:
                start, count = max(low, high - count), 8 * count
                last = next(iter(deque(self._reader.read_to_end({at: start}), maxlen=1)), None)
        return last

    def first_document(self, partition: int) -> int:
        """Returns where the log of a partition of documents begins."""
        with self._lock:
            return self._reader.bounds(TopicPartition(DOCUMENTS.name, partition))[0]

    def records(self, topic: str, partition: int) -> Iterator[Message]:
        """Yields the records of a partition, from its beginning to its present end."""
        with self._new_reader() as reader:  # its own: others need not wait
            yield from reader.read_to_end([TopicPartition(topic, partition)])
