"""The indexer as a process: on brokers of both kinds, killed inside a transaction, dead letters."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench.core.stack import Stack
from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.cluster import quiet_admin
from carpool.kafka.librdkafka import LibrdkafkaProducer
from carpool.kafka.partitioner import partition_of
from carpool.kafka.records import Output, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader, read_topic
from carpool.testing.kafka import KafkaServer
from schemas.codec import decode
from schemas.document import DocumentVectors
from schemas.topics import DOCUMENTS, VECTORS
from tests.cli.support import carpool
from tests.e2e.support import MODEL
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.slow
PARTITIONS = 2
SET = AlterConfigOpType.SET
TAKEN_OVER_S = 30.0
"""Less than any time-out of a transaction, which would end it without a takeover."""


class Documents:
    """Topics of a corpus under a prefix of their own, and indexers on them."""

    def __init__(
        self, bootstrap: str, folder: Path, prefix: str, partitions: int = PARTITIONS
    ) -> None:
        self.kafka = KafkaSettings(bootstrap=bootstrap, prefix=prefix, partitions=partitions)
        create_topics(self.kafka)
        self.folder = folder
        self.put_at: dict[bytes, float] = {}
        self._producer = LibrdkafkaProducer(self.kafka)

    def stack(self, members: int = 1) -> Stack:
        settings = {
            "CARPOOL_KAFKA_PREFIX": self.kafka.prefix,
            "CARPOOL_EMBEDDING_MODEL": MODEL,
            "MORTAL_FILE": str(self.folder / "mortal"),
        }
        return Stack(
            bootstrap=self.kafka.bootstrap,
            index_dir=self.folder,
            work_dir=self.folder,
            services=("indexer",),
            members=members,
            settings=settings,
            commands={"indexer": (sys.executable, "-m", "tests.e2e.mortal_corpus", "indexer")},
        )

    def put(self, key: str, value: Any, partition: int | None = None) -> None:
        body = json.dumps(value) if isinstance(value, Mapping) else value
        content = None if body is None else body.encode()
        output = Output(topic=DOCUMENTS.name, key=key.encode(), value=content, partition=partition)
        assert self._producer.produce(output, lambda error: None)
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.close(WAIT_S)
        self._producer = LibrdkafkaProducer(self.kafka)

    def vectors(self) -> dict[int, list[tuple[bytes, DocumentVectors]]]:
        found: dict[int, list[tuple[bytes, DocumentVectors]]] = defaultdict(list)
        for each in read_topic(self.kafka, SystemClock(), VECTORS.name, name="test"):
            record = decode(DocumentVectors, each.value, each.headers)
            found[each.source.partition].append((each.key or b"", record))
        return found

    def count(self) -> int:
        return sum(map(len, self.vectors().values()))

    def dlq(self, line: str) -> Any:
        brokers = f"--bootstrap {self.kafka.bootstrap} --set kafka.prefix={self.kafka.prefix}"
        ended = carpool(f"dlq {line} --json {brokers}")
        assert ended.code == 0, (ended.stdout, ended.stderr)
        return ended.json


@pytest.fixture
def documents(bootstrap: str, tmp_path: Path) -> Iterator[Documents]:
    yield Documents(bootstrap, tmp_path, f"d{time.monotonic_ns()}")


def test_refused_documents_are_dead_letters_that_can_be_replayed(documents: Documents) -> None:
    other = 1 - partition_of(b"gone", PARTITIONS)
    with documents.stack():
        documents.put("good", "text of it")
        documents.put("bad", "{")
        documents.put("gone", "to be deleted")
        documents.put("gone", None, partition=other)
        documents.flush()
        wait_until(lambda: documents.count() == 4)
        letters = documents.dlq(f"list --letters --topic {DOCUMENTS.name}")
        assert sorted(each["reason"] for each in letters) == ["invalid_value", "not_json"]
        (misplaced,) = (each for each in letters if each["reason"] == "invalid_value")
        at = misplaced["place"]
        place = f"{DOCUMENTS.name}/{at.get('partition', 0)}/{at.get('offset', 0)}"
        shown = documents.dlq(f"show {place}")
        assert "belongs in partition" in shown["errors"]["exception.message"]
        assert documents.dlq("replay --reason invalid_value") == {"replayed": 1, "cut": 0}
        wait_until(lambda: documents.count() == 5)
    own = documents.vectors()[partition_of(b"gone", PARTITIONS)]
    ends = [each.deleted for key, each in own if key == b"gone"]
    assert ends == [False, True], "the null value was replayed as one, where it belongs"


@pytest.mark.kafka
def test_an_indexer_killed_inside_a_transaction_is_taken_over_within_seconds(
    kafka_bootstrap: str, tmp_path: Path, record_property: Any
) -> None:
    documents = Documents(kafka_bootstrap, tmp_path, "mortal")
    clock, mortal = SystemClock(), tmp_path / "mortal"
    arrived: dict[int, list[float]] = {number: [] for number in range(PARTITIONS)}
    with (
        documents.stack(members=2) as stack,
        TopicReader(documents.kafka, clock, name="test") as reader,
    ):
        reader.add({TopicPartition(VECTORS.name, number): 0 for number in range(PARTITIONS)})
        sent = 0

        def goes_on() -> None:
            nonlocal sent
            for _ in range(4):
                documents.put(f"doc-{sent}", f"text {sent}")
                sent += 1
            for message in reader.poll(500, 0.05).messages:
                arrived[message.source.partition].append(time.monotonic())

        def is_shared() -> bool:
            goes_on()
            members = [stack[f"indexer-{number}"] for number in (1, 2)]
            return all(each.metric("carpool_records_produced_total") > 0 for each in members)

        wait_until(is_shared)
        mortal.write_text("its position is in the transaction")
        killed_s = time.monotonic()

        def is_taken_over() -> bool:
            goes_on()
            is_dead = not all(each.is_running for each in stack.services())
            late = [max(times, default=0.0) for times in arrived.values()]
            return is_dead and min(late) > killed_s + 1 and time.monotonic() > killed_s + 3

        wait_until(is_taken_over)
        documents.flush()
        wait_until(lambda: documents.count() >= sent)
    pause_s = max(b - a for times in arrived.values() for a, b in pairwise(times))
    print(f"longest pause of a partition: {pause_s:.1f} s")
    assert 1 < pause_s < TAKEN_OVER_S
    for found in documents.vectors().values():
        assert [each.offset for _, each in found] == list(range(len(found)))


@pytest.mark.kafka
def test_what_brokers_forgot_while_the_indexer_was_away_is_deleted(tmp_path: Path) -> None:
    with KafkaServer(tmp_path / "kafka", settings={"log.cleaner.backoff.ms": 100}) as broker:
        documents = Documents(broker.bootstrap, tmp_path, "away", partitions=1)
        compact_at_once(documents.kafka, DOCUMENTS.name)
        with documents.stack():
            documents.put("gone", "text of it")
            documents.put("kept", "text of it")
            documents.flush()
            wait_until(lambda: documents.count() == 2)
        documents.put("gone", None)
        documents.flush()

        def is_forgotten() -> bool:
            time.sleep(0.5)
            documents.put("kept", "once more")  # a new segment, so that the earlier one is cleaned
            documents.flush()
            records = read_topic(documents.kafka, SystemClock(), DOCUMENTS.name, name="test")
            return b"gone" not in {each.key for each in records}

        wait_until(is_forgotten)
        with documents.stack():
            wait_until(lambda: documents.count() > 3)
        own = [(key, each) for key, each in documents.vectors()[0] if key == b"gone"]
        assert [(each.offset, each.deleted) for _, each in own] == [(0, False), (1, True)]


def compact_at_once(kafka: KafkaSettings, topic: str) -> None:
    """Brokers clean this topic as soon as they can, and forget deletes after a second."""
    resource = ConfigResource(ResourceType.TOPIC, kafka.broker_topic(topic))
    for name, value in (
        ("delete.retention.ms", "1000"),
        ("min.compaction.lag.ms", "0"),
        ("segment.ms", "200"),
        ("min.cleanable.dirty.ratio", "0.001"),
    ):
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=SET))
    admin = quiet_admin(kafka)
    (changed,) = admin.incremental_alter_configs([resource]).values()
    changed.result(WAIT_S)
