"""Services restarted with a new index while questions wait: each is answered once."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from bench.core.stack import Stack
from carpool.disk.manifest import read_manifest
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIES
from tests.e2e.support import (
    LoggedRecord,
    Publisher,
    build_index,
    question,
    quick_settings,
    read_all,
    read_to_end,
)
from tests.waiting import wait_until

QUESTIONS = 60


def publish(bootstrap: str, *query_ids: str) -> list[str]:
    rng, publisher = random.Random(4), Publisher(bootstrap)
    for query_id in query_ids:
        body = json.dumps({"query_id": query_id, "text": question(rng)}).encode()
        publisher.queue(QUERIES.name, body, key=query_id)
    publisher.flush()
    return list(query_ids)


def planned(groups: list[LoggedRecord]) -> int:
    return sum(len(group.body["queries"]) for group in groups)


@pytest.mark.slow
def test_questions_that_wait_through_a_change_of_the_index_are_answered_once(
    fresh_broker: str, small_index: Path, tmp_path: Path
) -> None:
    time.sleep(1.1)  # the version of an index has its time in seconds
    new_index = build_index(tmp_path, documents=300)
    settings = quick_settings() | {"CARPOOL_LLM_ENGINE": "none"}

    def stack(index: Path, *services: str) -> Stack:
        return Stack(
            bootstrap=fresh_broker,
            index_dir=index,
            work_dir=tmp_path / f"{index.parent.name}-{'-'.join(services)}",
            services=services,
            settings=settings,
        )

    ids = publish(fresh_broker, *(f"q-{number}" for number in range(QUESTIONS)))
    with stack(small_index, "grouper") as behind:
        read_all(
            fresh_broker,
            GROUPS.name,
            until=lambda found: planned(found) >= QUESTIONS,
        )
        with stack(new_index, "searcher", "generator"):

            def refusal() -> tuple[int, str] | None:
                page = behind["grouper"].page("/readyz")
                return page if "this grouper has index" in page[1] else None

            said = wait_until(refusal, "the grouper finds that its index is old")
            assert said is not None and said[0] == 503
            assert read_manifest(new_index).index_version in said[1]
            ids += publish(fresh_broker, *(f"later-{number}" for number in range(10)))
            assert behind["grouper"].stop() == 0
            with stack(new_index, "grouper"):
                read_all(
                    fresh_broker,
                    ANSWERS.name,
                    until=lambda found: len(found) >= len(ids),
                )
    answers = read_to_end(fresh_broker, ANSWERS.name)
    assert sorted(each.body["query_id"] for each in answers) == sorted(ids), "each once"
    assert {each.body["status"] for each in answers} == {"ok"}
    assert {each.body["source"]["topic"] for each in answers} == {QUERIES.name}
    versions = {each.body["provenance"]["index_version"] for each in answers}
    assert versions == {read_manifest(new_index).index_version}
    returned = {each.body["query_id"] for each in read_to_end(fresh_broker, RETRIES.name)}
    assert {f"q-{number}" for number in range(QUESTIONS)} <= returned
