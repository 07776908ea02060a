"""Processed records between two services are deleted, except the last ones."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.librdkafka import purge as purge_module
from carpool.kafka.librdkafka.purge import ProcessedRecordsPurge
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from schemas.topics import GROUPS, QUERIES
from tests.waiting import WAIT_S

pytestmark = pytest.mark.kafka


def test_processed_records_are_deleted_but_the_last_and_those_of_applications_never(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_module, "RECORDS_KEPT", 3)
    settings = KafkaSettings(bootstrap=kafka_bootstrap, prefix="purge")
    create_topics(settings)
    groups, queries = TopicPartition(GROUPS.name, 0), TopicPartition(QUERIES.name, 0)
    with TopicReader(settings, SystemClock(), name="test") as reader:
        producer = Producer({"bootstrap.servers": kafka_bootstrap})
        for at in (groups, queries):
            for _ in range(10):
                producer.produce(settings.broker_topic(at.topic), b"v", partition=at.partition)
        assert producer.flush(WAIT_S) == 0
        committed = {at: reader.bounds(at)[1] for at in (groups, queries)}
        first_query = reader.bounds(queries)[0]
        purge = ProcessedRecordsPurge(settings, lambda: committed)
        purge.step()
        assert reader.bounds(groups) == (committed[groups] - 3, committed[groups])
        assert reader.bounds(queries)[0] == first_query
        committed[groups] -= 5  # an older commit of another member is no reason to fail
        purge.step()
        assert reader.bounds(groups)[0] == committed[groups] + 2
