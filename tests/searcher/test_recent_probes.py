"""What the log says about earlier questions: the last groups of real brokers."""

from __future__ import annotations

import numpy as np
import pytest
from confluent_kafka import Producer

from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from schemas.codec import encode
from schemas.group import Group
from schemas.record import ClusterId
from schemas.topics import GROUPS, GROUPS_BATCH
from searcher.shard import recent_probes
from searcher.shard.recent_probes import probes_of_log
from tests.records import a_group, a_grouped_query
from tests.waiting import WAIT_S

VERSION = "v-now"


def a_group_of(*clusters: tuple[int, ...], version: str = VERSION, arrival_us: int = 0) -> Group:
    queries = [
        a_grouped_query(
            f"q{number}", clusters=tuple(map(ClusterId, each)), arrival_us=arrival_us + number
        )
        for number, each in enumerate(clusters)
    ]
    return a_group(*queries, index_version=version)


@pytest.mark.kafka
def test_the_last_groups_of_an_index_are_read(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_probes, "RECORDS", 3)
    settings = KafkaSettings(bootstrap=kafka_bootstrap, prefix="hot-shard")
    create_topics(settings)
    read = probes_of_log(settings, SystemClock())
    assert read(VERSION) == []
    producer = Producer({"bootstrap.servers": kafka_bootstrap})

    def write(topic: str, group: Group | bytes) -> None:
        value, headers = (
            (group, ())
            if isinstance(group, bytes)
            else encode(group, event_id="e", source="test", time_us=1)
        )
        producer.produce(settings.broker_topic(topic), value, partition=0, headers=list(headers))

    write(GROUPS.name, a_group_of((9,)))  # before the last three
    write(GROUPS.name, a_group_of((1, 2), (2, 3), arrival_us=100))
    write(GROUPS.name, b"not a group")
    write(GROUPS.name, a_group_of((7,), version="v-before"))
    # Whichever topic is read first, one of these is read out of the order of arrival.
    write(GROUPS_BATCH.name, a_group_of((4, 5, 6), arrival_us=50))
    write(GROUPS_BATCH.name, a_group_of((8,), arrival_us=150))
    assert producer.flush(WAIT_S) == 0
    queries = read(VERSION)
    found = [each.clusters.tolist() for each in queries]
    assert found == [[4, 5, 6], [1, 2], [2, 3], [8]]
    vector = np.frombuffer(a_grouped_query("q").vector, "<f4")
    assert all(np.array_equal(each.vector, vector) for each in queries)


def test_brokers_that_do_not_answer_stop_no_searcher() -> None:
    settings = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_ms=1_000)
    assert probes_of_log(settings, SystemClock())(VERSION) == []
