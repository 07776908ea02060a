"""Topics are read without a group: a new topic is waited for, a missing one is reported."""

from __future__ import annotations

import pytest

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from carpool.kafka import topic_reader
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from tests.waiting import WAIT_S


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
