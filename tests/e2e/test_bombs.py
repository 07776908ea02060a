"""Records that unpack to much more than they are: good questions around them are answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.core.stack import Stack
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from schemas.topics import ANSWERS, QUERIES, QUERIES_DEAD
from tests.e2e.support import (
    LoggedRecord,
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


def resident_bytes(stack: Stack) -> dict[str, float]:
    return {
        name: process.metric("process_resident_memory_bytes")
        for name, process in stack.processes.items()
        if name != "llm"
    }


def test_bombs_end_as_letters_and_good_questions_around_them_are_answered(
    fresh_broker: str, small_index: Path, tmp_path: Path
) -> None:
    at = TopicPartition(QUERIES.name, PARTITION)
    with Stack(
        bootstrap=fresh_broker,
        index_dir=small_index,
        work_dir=tmp_path / "run",
        settings=quick_settings(),
    ) as stack:
        good = []

        def ask(count: int) -> None:
            for _ in range(count):
                good.append(f"good-{len(good)}")
                body = {"query_id": good[-1], "text": "what of the river and comet?"}
                write(KafkaSettings(bootstrap=fresh_broker), at, json.dumps(body).encode())

        def answered(found: list[LoggedRecord]) -> bool:
            return {each.body["query_id"] for each in found} >= set(good)

        ask(3)
        read_all(fresh_broker, ANSWERS.name, until=answered)
        before = resident_bytes(stack)
        for codec, size_bytes in BOMBS.items():
            write(KafkaSettings(bootstrap=fresh_broker), at, b" " * size_bytes, codec=codec)
            ask(1)
        answers = read_all(fresh_broker, ANSWERS.name, until=answered)
        statuses = {each.body["query_id"]: each.body["status"] for each in answers}
        assert {each: statuses.get(each) for each in good} == dict.fromkeys(good, "ok")
        after = resident_bytes(stack)
        letters = read_to_end(fresh_broker, QUERIES_DEAD.name)
        assert len(letters) == len(BOMBS)
        assert sum(len(letter.value) for letter in letters) < MIB
        grown = {name: (after[name] - before[name]) / MIB for name in before}
        assert max(grown.values()) < 200, grown
