"""Shared by end-to-end tests: a small index, and Kafka clients that see raw records."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.core.stack import Stack
from carpool.clock import SystemClock
from carpool.embedding import EmbeddingSettings
from carpool.kafka.admin import create_topics
from carpool.kafka.client_config import EMBEDDED_FETCH_WAIT_MS
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.raw_records import headers_of
from carpool.kafka.records import TopicPartition as Place
from carpool.kafka.settings import KafkaSettings
from carpool.testing.llm_server import LlmServer
from indexer.build import BuildRequest
from indexer.build import build_index as build
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings
from schemas.record import Headers, header
from schemas.topics import Topic
from tests.waiting import WAIT_S, wait_until

MODEL = "hashing:64"
VOCABULARY = "river mountain painter treaty orbit enzyme harbour violin glacier senate lantern"
WORDS = (*VOCABULARY.split(), "copper", "meadow", "comet", "dialect")


def build_index(
    folder: Path,
    *,
    documents: int = 400,
    nlist: int = 16,
    name: str = "doc",
    has_codes: bool = True,
) -> Path:
    """Builds an index of generated passages; returns its folder.

    The ids of its passages begin with `name`.
    """
    rng = random.Random(7)
    corpus = folder / "corpus.jsonl"
    with corpus.open("w") as file:
        for number in range(documents):
            text = " ".join(rng.choice(WORDS) for _ in range(30))
            body = {"id": f"{name}-{number}", "title": f"Passage {number}", "text": text}
            file.write(json.dumps(body) + "\n")
    rows_min = 1 if has_codes else 1 << 40
    config = IndexerConfig(
        embedding=EmbeddingSettings(model=MODEL),
        indexer=IndexerSettings(threads=1, code_rows_min=rows_min),
    )
    request = BuildRequest(corpus=corpus, index_dir=folder / "index", nlist=nlist)
    build(request, config, SystemClock(), SilentProgress())
    return folder / "index"


def question(rng: random.Random) -> str:
    return "what of the " + " ".join(rng.choice(WORDS) for _ in range(4)) + "?"


def quick_settings() -> dict[str, str]:
    """Settings for quick rebalances after a kill."""
    return {
        "CARPOOL_KAFKA_LIBRDKAFKA": '{"session.timeout.ms": 2000}',
        "CARPOOL_EMBEDDING_MODEL": MODEL,
    }


def services(
    bootstrap: str, index: Path, folder: Path, llm: LlmServer | None = None, **settings: str
) -> Stack:
    """All services. `settings`: by their variables, without `CARPOOL_`."""
    named = {f"CARPOOL_{name}": value for name, value in settings.items()}
    of_llm = {} if llm is None else {"CARPOOL_LLM_MODEL": llm.model}
    return Stack(
        bootstrap=bootstrap,
        index_dir=index,
        work_dir=folder,
        settings=quick_settings() | of_llm | named,
        llm_url=None if llm is None else llm.url,
    )


@dataclass(frozen=True)
class LoggedRecord:
    """One record of a topic."""

    key: bytes | None
    value: bytes
    headers: Headers
    partition: int
    offset: int

    @classmethod
    def of(cls, message: Message) -> LoggedRecord:
        """Converts a record of the client."""
        key, value = message.key(), message.value()
        assert not isinstance(key, str)
        assert not isinstance(value, str)
        return cls(
            key, value or b"", headers_of(message), message.partition() or 0, message.offset() or 0
        )

    @property
    def body(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.value)
        return decoded

    def text(self, name: str) -> str | None:
        value = header(self.headers, name)
        return value.decode() if value is not None else None


class Publisher:
    """Writes raw records and waits until the broker has them."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "message.max.bytes": 20_000_000,
                "partitioner": "murmur2_random",
            }
        )

    def send(
        self, topic: str, value: bytes | None, *, key: str | None = None, headers: Headers = ()
    ) -> KafkaError | None:
        """Returns the broker's error, or None once the record is written."""
        outcome: list[KafkaError | None] = []
        self.queue(topic, value, key=key, headers=headers, report=outcome.append)
        self._producer.flush(WAIT_S)
        return outcome[0]

    def queue(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: str | None = None,
        headers: Headers = (),
        report: Callable[[KafkaError | None], None] = lambda _: None,
    ) -> None:
        self._producer.produce(
            topic,
            value=value,
            key=key,
            headers=list(headers),
            on_delivery=lambda error, _: report(error),
        )

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0


def read_all(
    bootstrap: str,
    topic: str,
    *,
    until: Callable[[list[LoggedRecord]], bool] | None,
    timeout_s: float = WAIT_S,
) -> list[LoggedRecord]:
    """Returns the committed records of a topic from its beginning, once `until` is true of them.

    None: all that there are. Their end is read: some brokers report wrong watermarks.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": EMBEDDED_FETCH_WAIT_MS,
        }
    )
    partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[LoggedRecord] = []
    ended: set[int | None] = set()

    def has_read() -> bool:
        if until(found) if until else len(ended) >= len(partitions):
            return True
        for message in consumer.consume(500, timeout=0.1):
            error = message.error()
            if error is None:
                found.append(LoggedRecord.of(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return False

    try:
        wait_until(has_read, lambda: f"{topic} has {len(found)} records", timeout_s=timeout_s)
    finally:
        consumer.close()
    return found


def read_to_end(bootstrap: str, topic: str) -> list[LoggedRecord]:
    """Returns all committed records of a topic."""
    return read_all(bootstrap, topic, until=None)


def committed_positions(
    bootstrap: str, group: str, topic: str, partitions: Iterable[int]
) -> dict[int, tuple[int, str]]:
    """Returns the committed offset (0: none) and metadata of each partition."""
    found = committed_so_far(
        KafkaSettings(bootstrap=bootstrap), group, [Place(topic, n) for n in partitions]
    )
    return {at.partition: (max(0, raw.offset), raw.metadata or "") for at, raw in found.items()}


def make_again(settings: KafkaSettings, topic: Topic) -> None:
    """Deletes a topic, and makes it again at once."""
    admin = AdminClient({"bootstrap.servers": settings.bootstrap})
    (deleted,) = admin.delete_topics([settings.broker_topic(topic.name)]).values()
    deleted.result(WAIT_S)
    wait_until(lambda: create_topics(settings, (topic,)))


def at_least(count: int) -> Callable[[Sequence[LoggedRecord]], bool]:
    return lambda found: len(found) >= count
