"""A new index while questions wait: what was planned with the old one is planned again."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.clock import SystemClock
from carpool.disk.manifest import is_newer, read_manifest
from carpool.embedding import EmbeddingSettings
from indexer.empty import build_empty
from indexer.settings import IndexerConfig
from indexer.write import promote
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIES
from tests.e2e.support import MODEL, build_index
from tests.loop.pipeline import Pipeline
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of two indexes of different passages, the older one first."""
    folder = tmp_path_factory.mktemp("indexes")
    made = []
    for name, documents in (("old", 60), ("new", 90)):
        (folder / name).mkdir()
        made.append(build_index(folder / name, documents=documents, nlist=4))
        time.sleep(1.1)  # the version of an index has its time in seconds
    return made[0], made[1]


def publish(pipeline: Pipeline, count: int = 6) -> list[str]:
    ids = [f"q-{number}" for number in range(count)]
    pipeline.publish(*({"query_id": each, "text": f"what of comet {each}?"} for each in ids))
    return ids


def step(pipeline: Pipeline, service: str, until: Callable[[], bool]) -> None:
    """Steps one service only."""

    def stepped() -> bool:
        if until():
            return True
        pipeline.members[service].loop.step()
        return False

    wait_until(stepped)


def groups_of(pipeline: Pipeline, index: Path) -> int:
    version = read_manifest(index).index_version
    records = pipeline.broker.records(GROUPS.name)
    return sum(
        len(group["queries"])
        for group in (json.loads(record.value or b"") for record in records)
        if group["index_version"] == version
    )


def answered_sources(pipeline: Pipeline) -> list[tuple[str, str, int, str]]:
    bodies = [json.loads(record.value or b"") for record in pipeline.broker.records(ANSWERS.name)]
    return sorted(
        (body["query_id"], body["source"]["topic"], body["attempts"], body["status"])
        for body in bodies
    )


def test_questions_that_were_planned_with_the_old_index_are_answered_once_with_the_new_one(
    indexes: tuple[Path, Path],
) -> None:
    old, new = indexes
    pipeline = Pipeline(old, {})
    ids = publish(pipeline)
    step(pipeline, "grouper", lambda: groups_of(pipeline, old) == len(ids))
    pipeline.restart_with(new)
    pipeline.turn(lambda: len(pipeline.broker.records(ANSWERS.name)) == len(ids))
    pipeline.stop()
    assert answered_sources(pipeline) == [(each, QUERIES.name, 1, "ok") for each in ids]
    assert len(pipeline.broker.records(RETRIES.name)) == len(ids)
    assert groups_of(pipeline, new) == len(ids)


def sick(pipeline: Pipeline, service: str) -> str:
    return pipeline.members[service].loop.sink.health.reason or ""


@pytest.mark.parametrize("first", ["searcher", "grouper"])
def test_the_service_with_the_older_index_leaves_its_group_until_it_has_the_newer_one(
    indexes: tuple[Path, Path], first: str
) -> None:
    old, new = indexes
    pipeline = Pipeline(old, {})
    ids = publish(pipeline)
    step(pipeline, "grouper", lambda: groups_of(pipeline, old) == len(ids))
    pipeline.restart_with(new, first)
    ids += [f"later-{number}" for number in range(4)]
    pipeline.publish(*({"query_id": each, "text": "what of enzymes?"} for each in ids[6:]))
    behind = {"searcher": "grouper", "grouper": "searcher"}[first]
    pipeline.turn(lambda: pipeline.members[behind].loop.sink.health.is_away)
    assert f"this {behind} has index" in sick(pipeline, behind)
    assert "Restart it with that index ([index] dir)" in sick(pipeline, behind)
    pipeline.turn(lambda: sick(pipeline, behind) in pipeline.members[behind].loop.not_ready())
    assert sick(pipeline, first) == ""
    pipeline.restart_with(new, behind)
    pipeline.turn(lambda: len(pipeline.broker.records(ANSWERS.name)) == len(ids))
    pipeline.stop()
    answers = answered_sources(pipeline)
    assert answers == [(each, QUERIES.name, 1, "ok") for each in sorted(ids)]


def test_a_searcher_with_the_newer_index_takes_over_from_one_with_the_older(
    indexes: tuple[Path, Path],
) -> None:
    old, new = indexes
    pipeline = Pipeline(old, {})
    pipeline.restart_with(new, "grouper")
    newer = pipeline.add("searcher", "two")
    ids = publish(pipeline)

    was_away = set[bool]()

    def are_answered() -> bool:
        newer.loop.step()
        assert newer.loop.sink.health.reason is None
        was_away.add(pipeline.members["searcher"].loop.sink.health.is_away)
        return len(pipeline.broker.records(ANSWERS.name)) == len(ids)

    pipeline.turn(are_answered)
    assert True in was_away, "its turn to wait"
    newer.stop()
    pipeline.stop()
    assert answered_sources(pipeline) == [(each, QUERIES.name, 1, "ok") for each in ids]


def test_an_older_index_that_is_made_the_newest_replaces_a_newer_one(
    indexes: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = indexes
    again = shutil.copytree(old, tmp_path / "again")
    pipeline = Pipeline(new, {})
    ids = publish(pipeline)
    step(pipeline, "grouper", lambda: groups_of(pipeline, new) == len(ids))
    assert is_newer(promote(again, SystemClock()), read_manifest(new).index_version)
    pipeline.restart_with(again)
    pipeline.turn(lambda: len(pipeline.broker.records(ANSWERS.name)) == len(ids))
    pipeline.stop()
    assert answered_sources(pipeline) == [(each, QUERIES.name, 1, "ok") for each in ids]
    assert groups_of(pipeline, again) == len(ids)


def test_a_question_about_an_empty_index_is_answered_without_passages(tmp_path: Path) -> None:
    config = IndexerConfig(embedding=EmbeddingSettings(model=MODEL))
    build_empty(tmp_path / "empty", config, SystemClock())
    pipeline = Pipeline(tmp_path / "empty", {})
    ids = publish(pipeline)
    pipeline.turn(lambda: len(pipeline.broker.records(ANSWERS.name)) == len(ids))
    pipeline.stop()
    assert sorted(pipeline.answered()) == [(each, "ok", ()) for each in ids]
