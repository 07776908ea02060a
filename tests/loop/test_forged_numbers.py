"""Records whose numbers are forged, within their bounds, end; they end no service."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from carpool.disk.manifest import Manifest, read_manifest
from carpool.errors import DeploymentError, RecordError
from carpool.kafka.records import Message, TopicPartition
from schemas.group import Group
from schemas.topics import GROUPS, QUERIES, RETRIES, RETRIEVALS
from searcher.index_fit import check_fits
from tests.e2e.support import build_index, question
from tests.kafka.fuzzing import places
from tests.loop.paid_calls import use
from tests.loop.pipeline import SERVICES, Pipeline
from tests.records import a_unit
from tests.seed import SEED

EXTREMES = (1 - 10**18, -(10**6), -5, -1, 0, 1, 3, 100, 65_536, 2**31 - 1, 2**53, 10**18 - 1)
INPUTS = {QUERIES.name: "grouper", RETRIES.name: "grouper"}
INPUTS |= {GROUPS.name: "searcher", RETRIEVALS.name: "generator"}
EACH = 60
"""Forged records of each topic that are taken."""
OPTIONS = {"max_tokens": 9, "temperature": 0.5, "seed": 3}
ASKED: tuple[dict[str, object], ...] = (
    {"top_k": 3, "nprobe": 2, "deadline": 4 * 10**12, "priority": 1, "generation": OPTIONS},
    {"top_k": 2, "search_mode": "exact"},
    {"top_k": 3, "workflow": "every_kind"},
)


def forged(message: Message, number: int, rng: random.Random) -> Message:
    """Returns a record of another question with one to three wrong numbers."""
    name, place, body = f"forged-{number}", 10**6 + number, json.loads(message.value or b"")
    for each in body.get("queries", [body]):
        each.get("query", each)["query_id"] = name
        each.get("source", {})["offset"] = place
    numbers = [(it, key) for it, key in places(body) if type(it[key]) in (int, float)]
    numbers = [each for each in numbers if each[1] != "partition"]  # brokers refuse one they lack
    for it, key in rng.choices(numbers, k=rng.randint(1, 3)):
        it[key] = rng.choice(EXTREMES) * (1 if type(it[key]) is int else 0.3)
    own = {"ce_id": name.encode(), "rag-origin": f"rag.queries.v1/0/{place}/1".encode()}
    headers = tuple((key, own.get(key, value)) for key, value in message.headers)
    return replace(message, value=json.dumps(body).encode(), headers=headers)


def is_taken(message: Message, manifest: Manifest) -> bool:
    """Whether a service reads a record; one that it cannot read stops it, or has a dead letter."""
    try:
        record = SERVICES[INPUTS[message.source.topic]].intake.decode(message)
        if isinstance(record, Group):
            check_fits(a_unit(1, record), manifest)
    except (RecordError, DeploymentError):
        return False
    return True


def test_a_record_with_forged_numbers_ends_and_no_service_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    index = build_index(tmp_path, documents=60, nlist=4)
    pipeline, rng, made = Pipeline(index, {}), random.Random(SEED), 0
    for number, wishes in enumerate(ASKED):
        pipeline.publish({"query_id": f"q-{number}", "text": question(rng)} | wishes)
    pipeline.turn(until=lambda: pipeline.answered().total() == len(ASKED))
    ends: dict[TopicPartition, int] = {}
    for topic in INPUTS:
        real, taken = pipeline.broker.records(topic), 0
        while taken < EACH:
            made += 1
            if is_taken(one := forged(rng.choice(real), made, rng), read_manifest(index)):
                taken, at = taken + 1, TopicPartition(topic, one.source.partition)
                ends[at] = 1 + pipeline.broker.append(
                    topic, one.value, key=one.key, headers=one.headers, partition=at.partition
                )

    def all_ended() -> bool:
        read = {at: pipeline.broker.committed(f"carpool-{INPUTS[at.topic]}") for at in ends}
        return all((read[at][at].offset or 0) >= end for at, end in ends.items())

    pipeline.turn(until=all_ended)
    pipeline.publish({"query_id": "good", "text": question(rng)})
    pipeline.turn(until=lambda: any(name == "good" for name, *_ in pipeline.answered()))
    pipeline.stop()
