"""Indexer and searcher, killed once at each step of indexing, saving and swapping."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from bench.core.stack import Stack
from carpool.clock import SystemClock
from carpool.embedding import EmbeddingSettings
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from indexer.empty import build_empty
from indexer.settings import IndexerConfig
from producers.client import Client
from producers.corpus.save import save_base
from producers.documents import Put
from producers.settings import ClientSettings
from schemas.codec import decode
from schemas.document import Base, DocumentVectors
from schemas.topics import DOCUMENTS, VECTORS
from tests.e2e.mortal_corpus import STEPS, of_service
from tests.e2e.support import MODEL
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
SERVICES = ("grouper", "searcher", "generator", "indexer")
NOT_SAVED = "no base can be saved"
NAMES = [f"doc-{number}" for number in range(8)]


class Deployment:
    """Services on real Kafka, their documents, and what each must be now."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.kafka = KafkaSettings(bootstrap=bootstrap, prefix="steps.", partitions=2)
        create_topics(self.kafka)
        build_empty(
            folder / "index", IndexerConfig(embedding=EmbeddingSettings(model=MODEL)), SystemClock()
        )
        self.file, self.bases = folder / "mortal", folder / "index" / "bases"
        self.right: dict[str, str | None] = {}
        self.revisions = count(1)
        self.stack = Stack(
            bootstrap=bootstrap,
            index_dir=folder / "index",
            work_dir=folder,
            services=SERVICES,
            settings={
                "CARPOOL_KAFKA_PREFIX": self.kafka.prefix,
                "CARPOOL_EMBEDDING_MODEL": MODEL,
                "CARPOOL_LLM_ENGINE": "none",
                "MORTAL_FILE": str(self.file),
            },
            commands={
                name: (sys.executable, "-m", "tests.e2e.mortal_corpus", name) for name in SERVICES
            },
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client(kafka=self.kafka) as client:
            yield client

    async def change(self, client: Client) -> list[Put]:
        """Puts all documents anew, and deletes one; returns where the changes are."""
        number = next(self.revisions)
        gone = NAMES[number % len(NAMES)]
        puts = [await client.delete(gone)]
        self.right[gone] = None
        for name in NAMES:
            if name != gone:
                self.right[name] = f"revision {number} of {name}"
                puts.append(await client.put(name, text=f"revision {number} of {name}"))
        return puts

    async def check(self, client: Client, puts: list[Put]) -> str:
        """Compares what is found after these changes with what must be; returns the base."""
        answer = await client.ask(fetch=NAMES, after=puts)
        assert answer.status == "ok" and answer.corpus is not None, answer.error
        found = {each.id: each.passages[0].text if each.count else None for each in answer.fetched}
        assert found == self.right
        asked = await client.ask("revision", top_k=2 * len(NAMES), after=puts)
        assert sorted(each.id for each in asked.retrieved) == sorted(filter(self.right.get, NAMES))
        return answer.corpus.base

    def save(self, is_over: Callable[[], bool] = lambda: False) -> Base | None:
        """Asks for a base, and waits for it."""
        return save_base(self.kafka, ClientSettings(), SystemClock(), lambda _: None, is_over)

    def check_logs(self) -> None:
        """Each document has one record of vectors, in their order."""
        logs = []
        for topic in (DOCUMENTS.name, VECTORS.name):
            read = read_topic(self.kafka, SystemClock(), topic, name="test")
            places = [(each.source.partition, each) for each in read]
            logs.append(sorted(places, key=lambda place: place[0]))  # stable: by partition
        documents = [(partition, each.source.offset) for partition, each in logs[0]]
        made = [
            (partition, decode(DocumentVectors, each.value, each.headers).offset)
            for partition, each in logs[1]
        ]
        assert made == documents


@pytest.fixture(scope="module")
def deployment(
    kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    made = Deployment(kafka_bootstrap, tmp_path_factory.mktemp("steps"))
    with made.stack:
        yield made


@pytest.mark.parametrize("step", STEPS)
def test_after_a_kill_at_a_step_each_document_is_as_its_last_revision(
    deployment: Deployment, step: str
) -> None:
    asyncio.run(run(deployment, step))


def test_a_base_whose_folder_is_gone_is_succeeded_by_another_one(deployment: Deployment) -> None:
    gone = deployment.save()
    assert gone is not None
    shutil.rmtree(deployment.bases / gone.folder)
    asyncio.run(until_a_base_is_searched(deployment))


def test_a_base_that_cannot_be_written_is_saved_when_it_can_be(deployment: Deployment) -> None:
    away, log = deployment.bases.with_name("away"), deployment.stack["indexer"].log_file
    before = log.read_text().count(NOT_SAVED)
    deployment.bases.rename(away)
    deployment.bases.touch()

    def has_failed() -> bool:
        return log.read_text().count(NOT_SAVED) > before

    deployment.save(has_failed)
    deployment.bases.unlink()
    away.rename(deployment.bases)
    asyncio.run(until_a_base_is_searched(deployment))
    assert "a defect" not in log.read_text()


async def run(deployment: Deployment, step: str) -> None:
    service = deployment.stack[of_service(step)]
    async with deployment.client() as client:
        await deployment.check(client, await deployment.change(client))
        deployment.file.write_text(step)
        puts = await deployment.change(client)
        await asyncio.to_thread(deployment.save, lambda: not service.is_running)
        await asyncio.to_thread(wait_until, lambda: not service.is_running)
        service.start()
        await asyncio.to_thread(service.wait_ready)
        await deployment.check(client, puts)
    await until_a_base_is_searched(deployment)
    deployment.check_logs()


async def until_a_base_is_searched(deployment: Deployment) -> None:
    """Saves a base, and compares what is found until answers are of it."""
    async with deployment.client() as client:
        await deployment.check(client, await deployment.change(client))
        base = await asyncio.to_thread(deployment.save)
        assert base is not None
        while await deployment.check(client, await deployment.change(client)) != base.name:
            pass
