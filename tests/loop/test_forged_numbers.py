"""Records whose numbers are forged, within their bounds, end; they end no service."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from carpool.disk.manifest import read_manifest
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


class Forger:
    """Makes records of real ones: each of another question, with one to three wrong numbers."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._made = 0

    def forged(self, message: Message) -> Message:
        """Returns a record, which may not decode."""
        self._made += 1
        name, body = f"forged-{self._made}", json.loads(message.value or b"")
        for each in body.get("queries", [body]):
            each.get("query", each)["query_id"] = name
            each.get("source", {})["offset"] = 10**6 + self._made
        numbers = [
            (holder, key) for holder, key in places(body) if type(holder[key]) in (int, float)
        ]
        for holder, key in self._rng.choices(numbers, k=self._rng.randint(1, 3)):
            holder[key] = self._rng.choice(EXTREMES) * (1 if type(holder[key]) is int else 0.3)
        own = {
            "ce_id": name.encode(),
            "rag-origin": f"rag.queries.v1/0/{10**6 + self._made}/1".encode(),
        }
        headers = tuple((key, own.get(key, value)) for key, value in message.headers)
        return replace(message, value=json.dumps(body).encode(), headers=headers)


def is_taken(topic: str, message: Message, index: Path) -> bool:
    """Whether a service reads a record; one that it cannot read stops it, or has a dead letter."""
    try:
        record = SERVICES[INPUTS[topic]].intake.decode(message)
        if isinstance(record, Group):
            check_fits(a_unit(1, record), read_manifest(index))
    except (RecordError, DeploymentError):
        return False
    return True


def test_a_record_with_forged_numbers_ends_and_no_service_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    index = build_index(tmp_path, documents=60, nlist=4, has_codes=True)
    pipeline, rng, forger = Pipeline(index, {}), random.Random(4), Forger(SEED)
    wishes = {"top_k": 3, "nprobe": 2, "deadline": 4 * 10**12, "priority": 1}
    wishes["generation"] = {"max_tokens": 9, "temperature": 0.5, "seed": 3}
    exact, workflow = {"search_mode": "exact", "top_k": 2}, {"workflow": "every_kind", "top_k": 3}
    for number, more in enumerate((wishes, exact, workflow)):
        pipeline.publish({"query_id": f"q-{number}", "text": question(rng), **more})
    pipeline.turn(until=lambda: len(pipeline.answered()) == 3)
    ends: dict[TopicPartition, int] = {}
    for topic in INPUTS:
        real, taken = pipeline.broker.records(topic), 0
        while taken < EACH:
            message = forger.forged(rng.choice(real))
            if not is_taken(topic, message, index):
                continue
            taken, at = taken + 1, TopicPartition(topic, message.source.partition)
            ends[at] = 1 + pipeline.broker.append(
                topic,
                message.value,
                key=message.key,
                headers=message.headers,
                partition=at.partition,
            )

    def all_ended() -> bool:
        return all(
            (found := pipeline.broker.committed(f"carpool-{INPUTS[at.topic]}").get(at)) is not None
            and (found.offset or 0) >= end
            for at, end in ends.items()
        )

    pipeline.turn(until=all_ended)
    pipeline.publish({"query_id": "good", "text": question(rng)})
    pipeline.turn(until=lambda: any(id == "good" for id, *_ in pipeline.answered()))
    pipeline.stop()
    assert pipeline.kills == 0
