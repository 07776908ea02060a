"""Two corpora on one cluster."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.core.stack import SERVICES, Stack
from carpool import Client
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from schemas.answer import Answer
from schemas.topics import ANSWERS, GROUPS, QUERIES, QUERIES_DEAD, RETRIEVALS
from tests.e2e.support import (
    MODEL,
    Publisher,
    build_index,
    committed_positions,
    question,
    read_all,
    read_to_end,
)
from tests.waiting import WAIT_S

QUESTIONS = 8
PREFIXES = ("", "wiki")


def variables(bootstrap: str, prefix: str) -> dict[str, str]:
    return {
        "CARPOOL_KAFKA_BOOTSTRAP": bootstrap,
        "CARPOOL_KAFKA_PREFIX": prefix,
        "CARPOOL_EMBEDDING_MODEL": MODEL,
        "CARPOOL_LLM_ENGINE": "none",
    }


def run(bootstrap: str, prefix: str, *command: str, code: int = 0) -> Any:
    """Runs a command with the settings of one corpus; returns its JSON, or its text."""
    done = subprocess.run(
        [sys.executable, "-m", "carpool", *command],
        env=os.environ | variables(bootstrap, prefix),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if "--json" in command else done.stdout


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


def urls(stack: Stack) -> list[str]:
    return [part for name in SERVICES for part in ("--url", f"{name}=127.0.0.1:{stack[name].port}")]


@pytest.mark.slow
def test_two_corpora_on_one_cluster_answer_their_own_questions(
    fresh_broker: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_real = "kafka" in request.node.name
    kafka = {prefix: KafkaSettings(bootstrap=fresh_broker, prefix=prefix) for prefix in PREFIXES}
    create_topics(kafka["wiki"])
    with ExitStack() as running:
        stacks = {}
        for prefix in PREFIXES:
            folder = tmp_path / f"corpus-{prefix}"
            folder.mkdir()
            index = build_index(folder, documents=100, nlist=4, name=f"of-{prefix or 'none'}")
            stacks[prefix] = running.enter_context(
                Stack(
                    bootstrap=fresh_broker,
                    index_dir=index,
                    work_dir=folder / "run",
                    settings=variables(fresh_broker, prefix),
                )
            )
        for prefix in PREFIXES:
            answers = asyncio.run(ask_all(fresh_broker, prefix))
            assert {answer.status for answer in answers} == {"ok"}
            ids = {passage.id for answer in answers for passage in answer.retrieved}
            assert all(each.startswith(f"of-{prefix or 'none'}-") for each in ids), ids
            assert {answer.source.topic for answer in answers if answer.source} == {QUERIES.name}
            bad = kafka[prefix].broker_topic(QUERIES.name)
            assert Publisher(fresh_broker).send(bad, f"{{not of {prefix}".encode()) is None
            letters = kafka[prefix].broker_topic(QUERIES_DEAD.name)
            read_all(fresh_broker, letters, until=bool)
            _sees_its_own(fresh_broker, prefix)
        _commands_take_the_prefix(fresh_broker, stacks["wiki"], is_real=is_real)

    for prefix in PREFIXES:
        records = {
            topic: read_to_end(fresh_broker, kafka[prefix].broker_topic(topic.name))
            for topic in (QUERIES, GROUPS, RETRIEVALS, ANSWERS, QUERIES_DEAD)
        }
        asked = QUESTIONS + (prefix == "wiki")  # by `carpool ask`
        counts = {topic.name: len(found) for topic, found in records.items() if topic != GROUPS}
        assert counts == {
            QUERIES.name: asked + 1,
            RETRIEVALS.name: asked,
            ANSWERS.name: asked,
            QUERIES_DEAD.name: 1,
        }
        for topic, found in records.items():
            for record in found:
                held = repr((record.key, record.value, record.headers))
                assert "wiki.rag" not in held, (topic.name, held)
        (letter,) = records[QUERIES_DEAD]
        assert letter.value == f"{{not of {prefix}".encode()
        assert letter.text("rag.errors.topic") == QUERIES.name
    _an_operator_moves_offsets(fresh_broker)


def _sees_its_own(bootstrap: str, prefix: str) -> None:
    assert run(bootstrap, prefix, "topics", "check", "--json")["problems"] == []
    assert [each["letters"] for each in run(bootstrap, prefix, "dlq", "list", "--json")] == [0, 1]


def _commands_take_the_prefix(bootstrap: str, stack: Stack, *, is_real: bool) -> None:
    found = run(bootstrap, "wiki", "status", "--json", *urls(stack))
    assert found["topics_missing"] == []
    assert [group["name"] for group in found["groups"]] == [f"wiki-{name}" for name in SERVICES]
    for group in found["groups"]:
        assert all(each["topic"].startswith("rag.") for each in group["partitions"])
        if is_real:  # the embedded broker names no members
            assert all(each["member"] for each in group["partitions"]), group
    place = f"wiki.{QUERIES_DEAD.name}"
    (letter,) = run(bootstrap, "wiki", "dlq", "list", "--json", "--letters", "--topic", place)
    assert letter["topic"] == QUERIES.name
    answer = run(bootstrap, "wiki", "ask", "--json", "what of the river?", "--timeout", "60")
    assert answer["retrieved"][0]["id"].startswith("of-wiki-")


def _an_operator_moves_offsets(bootstrap: str) -> None:
    """Each service has ended. `groups reset` moves the offset of one corpus only."""
    before = committed_positions(bootstrap, "carpool-searcher", GROUPS.name, [0])
    place = f"wiki.{GROUPS.name}/0/1"
    said = run(bootstrap, "wiki", "groups", "reset", "searcher", place, "--yes")
    assert f"wiki.{GROUPS.name}[0]" in said
    moved = committed_positions(bootstrap, "wiki-searcher", f"wiki.{GROUPS.name}", [0])
    assert moved[0][0] == 1
    assert committed_positions(bootstrap, "carpool-searcher", GROUPS.name, [0]) == before
