"""Retry headers that an application writes, or that a tool copies from a dead letter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carpool.kafka.records import Message
from schemas.record import Headers
from schemas.topics import ANSWERS, QUERIES
from tests.e2e.support import build_index
from tests.loop.pipeline import Pipeline


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(tmp_path_factory.mktemp("index"), documents=60, nlist=4)


def sources_of_answers(pipeline: Pipeline) -> list[tuple[str, int]]:
    """(query id, offset of the record that the answer names) of every answer."""
    answers: list[Message] = pipeline.broker.records(ANSWERS.name)
    bodies = [json.loads(message.value or b"") for message in answers]
    return sorted((body["query_id"], body["source"]["offset"]) for body in bodies)


@pytest.mark.parametrize("attempt", [b"2", b"3"])
def test_a_forged_origin_takes_no_answer_from_another_record(index: Path, attempt: bytes) -> None:
    """One partition: an attacker's record names the record of a victim, under the victim's id."""
    pipeline = Pipeline(index, {})
    forged: Headers = (
        ("rag-attempt", attempt),
        ("rag-not-before-ms", b"9" * 13),
        ("rag-origin", b"rag.queries.v1/0/0/0"),
    )
    asked = json.dumps({"query_id": "victim", "text": "what of the river?"}).encode()
    attack = json.dumps({"query_id": "victim", "text": "what of the comet?"}).encode()
    pipeline.broker.append(QUERIES.name, asked, partition=0)
    pipeline.broker.append(QUERIES.name, attack, headers=forged, partition=0)
    pipeline.turn(lambda: len(pipeline.broker.records(ANSWERS.name)) == 2)
    pipeline.stop()
    assert sources_of_answers(pipeline) == [("victim", 0), ("victim", 1)]
