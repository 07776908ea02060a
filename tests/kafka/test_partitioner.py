"""Keys go to the partitions that Java's default partitioner chooses."""

from __future__ import annotations

import random
from collections.abc import Mapping

from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.librdkafka import LibrdkafkaProducer
from carpool.kafka.partitioner import partition_of
from carpool.kafka.records import Output
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from schemas.topics import DOCUMENTS
from tests.waiting import WAIT_S, wait_until

OF_KAFKA: Mapping[bytes, int] = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""Hashes that the tests of Kafka's own clients have (`UtilsTest.testMurmur2`)."""


def test_the_hash_is_the_one_of_kafkas_clients() -> None:
    for key, hashed in OF_KAFKA.items():
        assert partition_of(key, 1 << 31) == hashed & 0x7FFFFFFF


def test_librdkafka_chooses_the_same_partitions(embedded_bootstrap: str) -> None:
    settings = KafkaSettings(bootstrap=embedded_bootstrap, prefix="partitioner", partitions=7)
    create_topics(settings, [DOCUMENTS])
    rng = random.Random(1)
    keys = [rng.randbytes(length) for length in (*range(1, 40), 255, 1_024) for _ in range(4)]
    producer = LibrdkafkaProducer(settings)
    for key in keys:
        producer.produce(Output(topic=DOCUMENTS.name, key=key, value=None), lambda _: None)
    assert producer.close(WAIT_S) == 0

    def placed() -> dict[bytes | None, int]:
        records = read_topic(settings, SystemClock(), DOCUMENTS.name, name="test")
        return {each.key: each.source.partition for each in records}

    wait_until(lambda: len(placed()) == len(set(keys)))
    assert placed() == {key: partition_of(key, 7) for key in keys}
