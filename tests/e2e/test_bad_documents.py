"""Bad documents and bounds at running services: each ends with its reason, and all others go on."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from confluent_kafka import Producer

from bench.core.stack import Stack
from carpool.clock import SystemClock
from carpool.embedding import EmbeddingSettings
from carpool.embedding.hashing import HashingEmbedder
from carpool.kafka.admin import create_topics
from carpool.kafka.partitioner import partition_of
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from indexer.empty import build_empty
from indexer.settings import IndexerConfig
from producers.client import Client
from producers.documents import Put
from schemas.record import header
from schemas.topics import DOCUMENTS, DOCUMENTS_DEAD
from searcher.bounds import WAITING_MAX
from tests.e2e.support import MODEL
from tests.indexer.corpus_rig import given
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
SERVICES = ("grouper", "searcher", "generator", "indexer")
DIMENSION = 64
FINGERPRINT = HashingEmbedder(DIMENSION).fingerprint
FRESH_BYTES = 1 << 20
TOMBSTONES = 5_000
BOUND = 500
MORE_BYTES_MAX = 150 << 20
"""What a service may take more after bad documents."""


class Deployment:
    """Services whose searcher has little memory for documents."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.kafka = KafkaSettings(bootstrap=bootstrap, prefix="bad.", partitions=2)
        create_topics(self.kafka)
        config = IndexerConfig(embedding=EmbeddingSettings(model=MODEL))
        build_empty(folder / "index", config, SystemClock())
        settings = {
            "CARPOOL_KAFKA_PREFIX": self.kafka.prefix,
            "CARPOOL_EMBEDDING_MODEL": MODEL,
            "CARPOOL_LLM_ENGINE": "none",
            "CARPOOL_SEARCHER_FRESH_BYTES": str(FRESH_BYTES),
        }
        self.stack = Stack(
            bootstrap=bootstrap,
            index_dir=folder / "index",
            work_dir=folder,
            services=SERVICES,
            settings=settings,
        )

    def client(self) -> Client:
        return Client(kafka=self.kafka)

    def write(self, *records: tuple[bytes, bytes | None], **place: int) -> None:
        """Writes records as an application does that checks nothing."""
        producer = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "partitioner": "murmur2_random",
                "compression.type": "zstd",
                "message.max.bytes": 100_000_000,
            }
        )
        for key, value in records:
            producer.produce(self.kafka.broker_topic(DOCUMENTS.name), value, key, **place)
        assert not producer.flush(60)

    def letters(self) -> dict[bytes, str]:
        """Reasons of the dead letters, by key."""
        found = read_topic(self.kafka, SystemClock(), DOCUMENTS_DEAD.name, name="test")
        message = "rag.errors.exception.message"
        return {each.key or b"": (header(each.headers, message) or b"").decode() for each in found}

    def resident_bytes(self) -> dict[str, int]:
        names = ("indexer", "searcher")
        return {each: psutil.Process(self.stack[each].pid).memory_info().rss for each in names}


@pytest.fixture(scope="module")
def deployment(
    kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    made = Deployment(kafka_bootstrap, tmp_path_factory.mktemp("bad"))
    with made.stack:
        yield made


def passages(vector: list[float], model: str = FINGERPRINT) -> bytes:
    return json.dumps({"passages": [given("x", vector, embedding_model=model)]}).encode()


async def counts(client: Client, names: list[str], puts: list[Put]) -> list[int]:
    """How many passages each document has, once these puts are searched."""
    until_s = time.monotonic() + WAIT_S
    while (answer := await client.ask(fetch=names, after=puts)).status == "failed":
        assert answer.error is not None and answer.error.type == "stale"
        assert time.monotonic() < until_s, answer.error
    return [each.count for each in answer.fetched]


def test_bad_records_become_dead_letters_and_the_documents_behind_them_are_found(
    deployment: Deployment,
) -> None:
    bad = {
        b"nan": (passages([float("nan")] * DIMENSION), "a number that is not finite"),
        b"other model": (passages([1.0] * DIMENSION, "other"), "is of the model other"),
        b"wrong length": (passages([1.0] * 3), "64 numbers of float32"),
        b"5 MB": (b"It is one of many sentences. " * 180_000, "a document has at most 512"),
        b"1 MB of one word": (b"x" * 1_000_000, "a document has at most 512"),
        b"metadata": (b'{"text": "x", "metadata": [1]}', "$.metadata: Expected `object | null`"),
        b"control\ncharacters": (b"x", "text without control characters"),
        b"another id": (b'{"id": "b", "text": "x"}', "the key is the identity"),
    }
    before = deployment.resident_bytes()
    deployment.write(*((key, value) for key, (value, _) in bad.items()))
    deployment.write((b"stray", b"x"), partition=1 - partition_of(b"stray", 2))
    deployment.write(*((b"unknown-%d" % number, None) for number in range(TOMBSTONES)))

    async def others() -> None:
        async with deployment.client() as client:
            assert (await client.ask("anything")).status in ("ok", "partial")
            puts = [await client.put(name, text=f"{name} is good") for name in ("a", "b", "c")]
            assert await counts(client, ["a", "b", "c", "5 MB"], puts) == [1, 1, 1, 0]

    asyncio.run(others())
    letters = deployment.letters()
    assert letters.keys() == bad.keys() | {b"stray"}
    for key, (_, why) in bad.items():
        assert why in letters[key]
    after = deployment.resident_bytes()
    assert all(after[name] - before[name] < MORE_BYTES_MAX for name in before), (before, after)


def test_more_documents_at_once_than_a_searcher_has_room_for_are_found(
    deployment: Deployment,
) -> None:
    """Each takes little but its metadata; the first base that is saved comes too early for all."""
    names = [f"burst-{number}" for number in range(3_000)]
    value = json.dumps({"text": "burst", "metadata": {"url": "u" * 1_900}}).encode()
    deployment.write(*((name.encode(), value) for name in names))

    async def all_are_found() -> None:
        async with deployment.client() as client:
            puts = [await client.put(f"last-{number}", text="x") for number in range(8)]
            assert await counts(client, names[-9:], puts) == [1] * 9

    asyncio.run(all_are_found())


def test_bounds_without_an_indexer_end_as_stale_and_block_no_other_question(
    deployment: Deployment,
) -> None:
    async def ask() -> tuple[Counter[str], float, float]:
        loop, indexer = asyncio.get_running_loop(), deployment.stack["indexer"]
        async with deployment.client() as client:
            await asyncio.to_thread(indexer.stop)
            put = await client.put("late", text="It came late.")
            began_s = loop.time()
            bound = [asyncio.create_task(client.ask("late?", after=put)) for _ in range(BOUND)]
            beyond = await client.ask("x", after=SimpleNamespace(position={0: 10**15}))
            assert beyond.error is not None
            assert (await client.ask("anything")).status in ("ok", "partial")
            other_s = loop.time() - began_s
            errors = [(await each).error for each in bound]
            all_s = loop.time() - began_s
            assert all(each is not None and each.type == "stale" for each in errors)
            indexer.start()
            await asyncio.to_thread(indexer.wait_ready)
            assert await counts(client, ["late"], [put]) == [1]
        reasons = Counter(each.message.rpartition(": ")[2] for each in errors if each is not None)
        return reasons, other_s, all_s

    reasons, other_s, all_s = asyncio.run(ask())
    assert reasons["too many queries wait"] >= BOUND - 2 * WAITING_MAX
    assert other_s < all_s
