"""Workflows on whole services: by name, as a graph, of an operator's module, and from Java."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from carpool.testing.llm_server import LlmServer
from schemas.topics import ANSWERS, QUERIES
from tests.deploy.doc_blocks import ROOT
from tests.e2e.support import Publisher, read_all, services
from tests.loop.test_workflows import GRAPH, STEPS_OF
from tests.waiting import WAIT_S
from tests.workflow import listings

pytestmark = pytest.mark.slow

LISTED = ("listing-hyde", "listing-multistep")
BUILT_IN = ("one_shot", "hyde", "multistep", "irg", "recomp", "corrective")
QUESTION = "what of the river glacier?"


def said_by_java(bootstrap: str, workflow: str, folder: Path) -> str:
    properties = folder / "client.properties"
    properties.write_text(f"bootstrap.servers={bootstrap}\n")
    java = ["java", "-cp", f"{os.environ['KAFKA_HOME']}/libs/*", str(ROOT / "examples/Ask.java")]
    command = [*java, str(properties), QUESTION, workflow]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=WAIT_S
    ).stdout


def test_every_program_is_answered_once_and_a_java_program_starts_one(
    fresh_broker: str, small_index: Path, tmp_path: Path
) -> None:
    modules = {"WORKFLOW_MODULES": listings.__file__}
    with LlmServer() as llm, services(fresh_broker, small_index, tmp_path, llm, **modules):
        publisher = Publisher(fresh_broker)
        workflows: dict[str, Any] = {name: name for name in (*BUILT_IN, *LISTED, "unknown")}
        workflows["graph"] = {"graph": GRAPH}
        for name, workflow in workflows.items():
            body = {"query_id": name, "text": QUESTION, "workflow": workflow}
            publisher.send(QUERIES.name, json.dumps(body).encode(), key=name)
        if "KAFKA_HOME" in os.environ:
            for workflow in ("hyde", json.dumps({"graph": GRAPH})):
                assert said_by_java(fresh_broker, workflow, tmp_path).startswith("ok: ")
        records = read_all(
            fresh_broker,
            ANSWERS.name,
            until=lambda some: workflows.keys() <= {each.body["query_id"] for each in some},
        )
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(record.body["query_id"], []).append(record.body)
    assert set(Counter(map(len, found.values()))) == {1}, "each is answered once"
    ends = {"unknown": "failed", "listing-multistep": "partial"}
    for name, (answer,) in ((name, found[name]) for name in workflows):
        assert answer["status"] == ends.get(name, "ok"), answer
    assert "there is no workflow 'unknown'" in found["unknown"][0]["error"]["message"]
    assert "steps" not in found["one_shot"][0]
    kinds = [step["kind"] for step in found["listing-hyde"][0]["steps"]]
    assert kinds == STEPS_OF["hyde"]
    assert found["listing-multistep"][0]["error"]["type"] == "workflow_limit"
    assert len(found["listing-multistep"][0]["steps"]) == 12
