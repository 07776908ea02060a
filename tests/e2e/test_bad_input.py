"""Malformed records become dead letters with a reason; all other queries are answered."""

from __future__ import annotations

import json
from pathlib import Path

from bench.core.stack import Stack
from carpool.disk.manifest import read_manifest
from schemas.topics import ANSWERS, QUERIES, QUERIES_DEAD
from tests.e2e.support import Publisher, quick_settings, read_all
from tests.rig.poison import Poison, poison_for, poison_records


def largest_accepted(publisher: Publisher) -> int:
    """Returns the size of the largest value that the topic accepts; writes that record."""
    for size in range(QUERIES.max_message_bytes, QUERIES.max_message_bytes - 400, -4):
        if publisher.send(QUERIES.name, b"y" * size) is None:
            return size
    raise AssertionError("the topic takes nothing near its limit")


def test_malformed_records_are_rejected_with_a_reason_and_the_others_are_answered(
    fresh_broker: str, small_index: Path, tmp_path: Path
) -> None:
    publisher = Publisher(fresh_broker)
    largest = largest_accepted(publisher)
    manifest = read_manifest(small_index)
    longest = Poison(value=b"x" * largest, reason="too_large")
    bad = (*poison_records(), *poison_for(manifest.embedding_model, manifest.dimension), longest)
    good = []
    for number, each in enumerate(bad):
        good.append(f"good-{number}")
        publisher.queue(QUERIES.name, _question(good[-1], f"what of the river and comet {number}?"))
        publisher.queue(QUERIES.name, each.value, headers=each.headers)
    publisher.flush()
    answerable = {each.query_id for each in bad if each.query_id}

    with Stack(
        bootstrap=fresh_broker,
        index_dir=small_index,
        work_dir=tmp_path / "run",
        settings=quick_settings(),
    ):
        letters = read_all(
            fresh_broker,
            QUERIES_DEAD.name,
            until=lambda found: len(found) >= len(bad) + 1,
        )
        answers = read_all(
            fresh_broker,
            ANSWERS.name,
            until=lambda found: {*good, *answerable} <= {each.body["query_id"] for each in found},
        )

    statuses = {each.body["query_id"]: each.body["status"] for each in answers}
    assert {query_id: statuses.get(query_id) for query_id in good} == dict.fromkeys(good, "ok")
    assert {query_id: statuses.get(query_id) for query_id in answerable} == dict.fromkeys(
        answerable, "failed"
    )
    reasons = {
        each.body["query_id"]: each.body["error"]["type"]
        for each in answers
        if each.body["status"] == "failed"
    }
    assert {each.query_id: each.reason for each in bad if each.query_id}.items() <= reasons.items()

    assert len(letters) == len(bad) + 1, "each bad record once, and the largest of all"
    expected = sorted([each.reason for each in bad] + ["too_large"])
    names = [(letter.text("rag.errors.exception.class.name") or "") for letter in letters]
    assert sorted(name.removeprefix("RecordError.") for name in names) == expected
    assert {each.value or b"" for each in bad} <= {letter.value for letter in letters}, (
        "raw bytes are kept"
    )
    assert all(letter.text("rag.errors.topic") == QUERIES.name for letter in letters)
    assert all(letter.text("rag.errors.exception.message") for letter in letters)


def _question(query_id: str, text: str) -> bytes:
    return json.dumps({"query_id": query_id, "text": text}).encode()
