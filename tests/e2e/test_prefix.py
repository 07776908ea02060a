"""Two corpora on one cluster."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.core.stack import Stack
from carpool import Client
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from schemas.answer import Answer
from schemas.topics import ANSWERS, GROUPS, QUERIES, QUERIES_DEAD, RETRIEVALS
from tests.e2e.support import (
    Publisher,
    build_index,
    question,
    quick_settings,
    read_all,
    read_to_end,
)
from tests.waiting import WAIT_S

QUESTIONS = 8
PREFIXES = ("", "wiki")


async def ask_all(bootstrap: str, prefix: str) -> list[Answer]:
    """Asks the same questions, under the same ids, of each corpus."""
    rng = random.Random(3)
    async with Client(bootstrap, prefix=prefix) as client:
        return await asyncio.gather(
            *(
                client.ask(question(rng), query_id=f"q-{number}", top_k=3, timeout_s=WAIT_S)
                for number in range(QUESTIONS)
            )
        )


@pytest.mark.slow
def test_two_corpora_on_one_cluster_answer_their_own_questions(
    bootstrap: str, tmp_path: Path
) -> None:
    kafka = {prefix: KafkaSettings(bootstrap=bootstrap, prefix=prefix) for prefix in PREFIXES}
    create_topics(kafka["wiki"])
    with ExitStack() as running:
        for prefix in PREFIXES:
            folder = tmp_path / f"corpus-{prefix}"
            folder.mkdir()
            index = build_index(folder, documents=100, nlist=4, name=f"of-{prefix or 'none'}")
            settings = {"CARPOOL_KAFKA_PREFIX": prefix, "CARPOOL_LLM_ENGINE": "none"}
            running.enter_context(
                Stack(
                    bootstrap=bootstrap,
                    index_dir=index,
                    work_dir=folder / "run",
                    settings=quick_settings() | settings,
                )
            )
        for prefix in PREFIXES:
            answers = asyncio.run(ask_all(bootstrap, prefix))
            assert {answer.status for answer in answers} == {"ok"}
            ids = {passage.id for answer in answers for passage in answer.retrieved}
            assert all(each.startswith(f"of-{prefix or 'none'}-") for each in ids), ids
            assert {answer.source.topic for answer in answers if answer.source} == {QUERIES.name}
            bad = kafka[prefix].broker_topic(QUERIES.name)
            assert Publisher(bootstrap).send(bad, f"{{not of {prefix}".encode()) is None
            read_all(bootstrap, kafka[prefix].broker_topic(QUERIES_DEAD.name), until=bool)

    for prefix in PREFIXES:
        records = {
            topic.name: read_to_end(bootstrap, kafka[prefix].broker_topic(topic.name))
            for topic in (QUERIES, GROUPS, RETRIEVALS, ANSWERS, QUERIES_DEAD)
        }
        counts = {name: len(found) for name, found in records.items() if name != GROUPS.name}
        assert counts == {
            QUERIES.name: QUESTIONS + 1,
            RETRIEVALS.name: QUESTIONS,
            ANSWERS.name: QUESTIONS,
            QUERIES_DEAD.name: 1,
        }
        for name, found in records.items():
            for record in found:
                held = repr((record.key, record.value, record.headers))
                assert "wiki.rag" not in held, (name, held)
        (letter,) = records[QUERIES_DEAD.name]
        assert letter.value == f"{{not of {prefix}".encode()
