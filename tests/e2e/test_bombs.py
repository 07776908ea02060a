"""Records that unpack to much more than they are: good questions around them are answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.core.stack import Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.embedded import EmbeddedBroker
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from schemas.topics import ANSWERS, QUERIES, QUERIES_DEAD
from tests.e2e.support import (
    LoggedRecord,
    build_index,
    quick_settings,
    read_all,
    read_to_end,
)
from tests.kafka.test_unreadable_records import write

MIB = 1024 * 1024
BOMBS = {"zstd": 90_000_000, "gzip": 250_000_000, "lz4": 250_000_000}
"""Spaces by codec. Each is less than a megabyte in the topic."""
PARTITION = 0

pytestmark = pytest.mark.slow


@contextmanager
def broker_of(kind: str, folder: Path) -> Iterator[str]:
    with KafkaServer(folder) if kind == "kafka" else EmbeddedBroker() as broker:
        yield broker.bootstrap


def resident_bytes(stack: Stack) -> dict[str, float]:
    return {
        name: process.metric("process_resident_memory_bytes")
        for name, process in stack.processes.items()
        if name != "llm"
    }


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("embedded", marks=pytest.mark.long),
    ],
)
def test_bombs_end_as_letters_and_good_questions_around_them_are_answered(
    kind: str, tmp_path: Path
) -> None:
    index = build_index(tmp_path)
    at = TopicPartition(QUERIES.name, PARTITION)
    with broker_of(kind, tmp_path / "kafka") as bootstrap:
        create_topics(KafkaSettings(bootstrap=bootstrap))
        with Stack(
            bootstrap=bootstrap,
            index_dir=index,
            work_dir=tmp_path / "run",
            settings=quick_settings("bombs"),
        ) as stack:
            good = []

            def ask(count: int) -> None:
                for _ in range(count):
                    good.append(f"good-{len(good)}")
                    body = {"query_id": good[-1], "text": "what of the river and comet?"}
                    write(KafkaSettings(bootstrap=bootstrap), at, json.dumps(body).encode())

            def answered(found: list[LoggedRecord]) -> bool:
                return {each.body["query_id"] for each in found} >= set(good)

            ask(3)
            read_all(bootstrap, ANSWERS.name, until=answered)
            before = resident_bytes(stack)
            for codec, size_bytes in BOMBS.items():
                write(KafkaSettings(bootstrap=bootstrap), at, b" " * size_bytes, codec=codec)
                ask(1)
            answers = read_all(bootstrap, ANSWERS.name, until=answered)
            statuses = {each.body["query_id"]: each.body["status"] for each in answers}
            assert {each: statuses.get(each) for each in good} == dict.fromkeys(good, "ok")
            after = resident_bytes(stack)
            letters = read_to_end(bootstrap, QUERIES_DEAD.name)
            assert len(letters) == len(BOMBS)
            assert sum(len(letter.value) for letter in letters) < MIB
            grown = {name: (after[name] - before[name]) / MIB for name in before}
            assert max(grown.values()) < 200, grown
