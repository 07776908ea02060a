"""Hostile programs on whole services: each ends its own question, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from carpool.testing.llm_server import LlmServer
from schemas.topics import ANSWERS, QUERIES
from tests.e2e.support import LoggedRecord, Publisher, at_least, read_all, services
from tests.workflow import hostile

pytestmark = pytest.mark.slow

GOOD = 10
SERVICE_BYTES_MAX, CHILD_BYTES_MAX = 600 * 2**20, 80 * 2**20


def answered(bootstrap: str, asked: Mapping[str, str | None], count: int = 0) -> list[LoggedRecord]:
    """Asks, and returns all answers when there are so many."""
    publisher = Publisher(bootstrap)
    for id, workflow in asked.items():
        body = {"query_id": id, "text": f"what of the river {id}?", "workflow": workflow}
        publisher.send(QUERIES.name, json.dumps(body).encode(), key=id)
    return read_all(bootstrap, ANSWERS.name, until=at_least(count or len(asked)))


def test_hostile_programs_end_alone_among_good_ones(
    fresh_broker: str, small_index: Path, tmp_path: Path
) -> None:
    asked: dict[str, str | None] = {f"bad-{name}": name for name in hostile.SAID}
    asked |= {f"good-{at}": "good" for at in range(GOOD)}
    asked |= {f"plain-{at}": None for at in range(GOOD)}
    with (
        LlmServer() as llm,
        services(
            fresh_broker, small_index, tmp_path, llm, WORKFLOW_MODULES=hostile.__file__
        ) as stack,
    ):
        before = [service.pid for service in stack.services()]
        records = answered(fresh_broker, asked)
        asked["last"] = "good"  # a child that ended is started again when it is needed
        records = answered(fresh_broker, {"last": "good"}, len(asked))
        processes = [psutil.Process(service.pid) for service in stack.services()]
        children = [child for each in processes for child in each.children()]
        assert [each.pid for each in processes] == before, "no service ended"
        assert len(children) == 2, "grouper and generator have a process of the module each"
        assert max(each.memory_info().rss for each in processes) < SERVICE_BYTES_MAX
        assert max(each.memory_info().rss for each in children) < CHILD_BYTES_MAX
    answers: dict[str, dict[str, Any]] = {each.body["query_id"]: each.body for each in records}
    assert len(records) == len(asked), "each is answered once"
    for id, workflow in asked.items():
        answer = answers[id]
        if id.startswith("bad"):
            assert answer["status"] == "failed" and answer["error"]["type"] == "workflow_failed"
            assert re.search(hostile.SAID[str(workflow)], answer["error"]["message"])
        else:
            assert answer["status"] == "ok", answer
