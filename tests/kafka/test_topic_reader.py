"""Topics are read without a group: a new topic is waited for, a missing one is reported."""

from __future__ import annotations

import uuid

import pytest

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from carpool.kafka import topic_reader
from carpool.kafka.admin import create_topics
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_log import FOLLOWER
from carpool.kafka.topic_reader import TopicReader
from schemas.topics import ANSWERS
from tests.e2e.support import Publisher, make_again
from tests.waiting import WAIT_S, wait_until


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> TopicReader:
    """A reader whose brokers know the topic "a" from the third request on."""
    monkeypatch.setattr(topic_reader, "RETRY_S", 0.001)
    requests = iter(range(10**9))
    known = {"a": (0, 1)}
    monkeypatch.setattr(TopicReader, "topics", lambda self: known if next(requests) >= 2 else {})
    return TopicReader(KafkaSettings(bootstrap="127.0.0.1:1"), SystemClock(), name="test")


def test_a_topic_that_was_just_created_is_waited_for(reader: TopicReader) -> None:
    assert reader.partitions("a", patience_s=WAIT_S) == [TopicPartition("a", n) for n in (0, 1)]


def test_a_topic_that_does_not_exist_is_an_error(reader: TopicReader) -> None:
    with pytest.raises(ConfigError, match="carpool topics create"):
        reader.partitions("b", patience_s=0.01)


@pytest.mark.kafka
def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "METADATA_REFRESH_MS", 1_000)
    soon = {"topic.metadata.refresh.interval.ms": 1_000}
    prefix = f"again-{uuid.uuid4().hex[:8]}"
    settings = KafkaSettings(bootstrap=kafka_bootstrap, prefix=prefix, partitions=1)
    create_topics(settings, (ANSWERS,))
    found: list[bytes | None] = []

    def read(reader: TopicReader, *values: bytes) -> None:
        publisher = Publisher(kafka_bootstrap)
        for value in values:
            assert publisher.send(settings.broker_topic(ANSWERS.name), value, key="a") is None
        found.clear()
        wait_until(
            lambda: (
                found.extend(each.value for each in reader.poll(10, 0.05).messages)
                or found[-len(values) :] == list(values)
            ),
            lambda: found,
        )

    with TopicReader(settings, SystemClock(), name="again", config=FOLLOWER | soon) as reader:
        (at,) = reader.partitions(ANSWERS.name)
        reader.add({at: reader.bounds(at, patience_s=WAIT_S)[1]})
        read(reader, b"1", b"2")
        make_again(settings, ANSWERS)
        read(reader, b"3", b"4", b"5", b"6")
