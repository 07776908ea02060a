"""What the indexer asks brokers of both kinds: transactions leave markers that are no records."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.librdkafka import LibrdkafkaTransactionalProducer
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings
from indexer.corpus_logs import CorpusLogs
from schemas.topics import DAY_MS, DOCUMENTS, VECTORS
from tests.records import a_source
from tests.waiting import wait_until


class Log:
    """Topics of a corpus, and transactions on them."""

    def __init__(self, bootstrap: str) -> None:
        prefix = f"l{uuid.uuid4().hex[:8]}"
        self.settings = KafkaSettings(bootstrap=bootstrap, prefix=prefix, partitions=2)
        create_topics(self.settings, (DOCUMENTS, VECTORS))
        self.logs = CorpusLogs(self.settings, SystemClock())
        self.producer = LibrdkafkaTransactionalProducer(self.settings, prefix)
        self.producer.start()

    def write(self, topic: str, *keys: bytes, commits: bool = True) -> None:
        self.producer.begin()
        for key in keys:
            self.producer.produce(Output(topic=topic, key=key, value=b"v", partition=0))
        self.producer.commit() if commits else self.producer.abort()


@pytest.fixture
def log(bootstrap: str) -> Iterator[Log]:
    made = Log(bootstrap)
    yield made
    made.producer.close()


def test_the_last_record_is_found_behind_any_number_of_markers(log: Log) -> None:
    log.logs.open()
    assert (log.logs.partitions, log.logs.nulls_ms) == (2, 7 * DAY_MS)
    assert len(log.logs.topic_id()) == 22
    assert log.logs.last_vectors(0) is None
    log.write(VECTORS.name, b"a", b"b")
    log.write(VECTORS.name, b"c")
    for _ in range(12):
        log.write(VECTORS.name, b"aborted", commits=False)
    found = log.logs.last_vectors(0)
    assert found is not None
    assert found.key == b"c" or found.key == b"aborted", "the embedded broker aborts nothing"
    assert [each.key for each in log.logs.records(VECTORS.name, 0)][:3] == [b"a", b"b", b"c"]
    assert log.logs.last_vectors(1) is None


@pytest.mark.kafka
def test_a_marker_is_no_document_that_follows(kafka_bootstrap: str) -> None:
    log = Log(kafka_bootstrap)
    log.write(DOCUMENTS.name, b"a", b"b")
    log.write(DOCUMENTS.name, b"aborted", commits=False)
    looked = [log.logs.has_more(a_source(offset, DOCUMENTS.name)) for offset in (0, 1)]
    assert looked == [True, False]
    log.write(DOCUMENTS.name, b"c")
    # Brokers write the marker of a commit after they have answered it.
    wait_until(lambda: log.logs.has_more(a_source(1, DOCUMENTS.name)))
    assert log.logs.first_document(0) == 0
    log.producer.close()
