"""Workflows through grouper, searcher and generator: each ends once, and no step runs again."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from carpool.endings import QueryEnds
from carpool.origins import read_query
from carpool.workflow import Retrieve
from carpool.workflow.workflows import search_query, with_results
from schemas.answer import Answer
from schemas.codec import decode, decode_query
from schemas.errors import RecordError
from schemas.topics import ANSWERS, RETRIES
from schemas.workflow import StepResult
from tests.clocks import NOW_US
from tests.e2e.support import build_index, question
from tests.generator.stage import WORKFLOWS
from tests.loop.paid_calls import PaidCalls, committed, use
from tests.loop.pipeline import PARTIALS, SERVICES, Pipeline
from tests.records import a_message, a_query, a_source, a_unit, asked_query
from tests.rig.steps import Steps, silent_deaths

PROGRAMS = ("hyde", "multistep", "irg", "recomp", "corrective")
GRAPH = {
    "nodes": [
        {"id": "split", "prompt": "Decompose {input}.", "output": "subquestion"},
        {"id": "search", "query": "subquestion", "top_k": 2, "output": "docs"},
        {"id": "say", "prompt": "Answer {subquestion} using {docs}.", "output": "said"},
    ],
    "edges": [
        {"from": "START", "to": "split"},
        {"from": "split", "to": "search"},
        {"from": "search", "to": "say"},
        {"from": "say", "to": "split", "when": {"test": "rounds_at_most", "argument": 1}},
        {"from": "say", "to": "END"},
    ],
}
STEPS_OF = {
    "hyde": ["generate", "retrieve"],
    "multistep": ["generate", "retrieve", "generate", "generate", "retrieve"],
    "irg": ["retrieve", *["generate", "retrieve"] * 2],
    "recomp": ["retrieve", *["generate"] * 4],
    "corrective": ["retrieve", "generate", "generate", "retrieve"],
    "graph": [*["generate", "retrieve", "generate"] * 2],
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(tmp_path_factory.mktemp("workflows"), documents=60, nlist=4)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> PaidCalls:
    return use(monkeypatch)


def asked() -> list[dict[str, object]]:
    rng = random.Random(1)
    workflows: dict[str, object] = {name: name for name in PROGRAMS}
    workflows |= {"graph": {"graph": GRAPH}, "plain": None}
    return [
        {"query_id": name, "text": question(rng), "workflow": workflow}
        for name, workflow in workflows.items()
    ]


def answers(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [json.loads(message.value or b"") for message in pipeline.broker.records(ANSWERS.name)]


def steps_told(pipeline: Pipeline) -> dict[str, list[dict[str, Any]]]:
    """The steps that pieces of answers tell, by query; every other piece is text alone."""
    told: dict[str, list[dict[str, Any]]] = {}
    for message in pipeline.broker.records(PARTIALS):
        piece = json.loads(message.value or b"")
        if "step" in piece:
            steps = told.setdefault(piece["query_id"], [])
            assert (piece["text"], piece["seq"]) == ("", len(steps))
            steps.append(piece["step"])
    return told


def run(pipeline: Pipeline, *bodies: dict[str, object]) -> dict[str, dict[str, Any]]:
    pipeline.publish(*bodies)
    pipeline.turn(until=lambda: len(answers(pipeline)) >= len(bodies))
    found = answers(pipeline)
    assert Counter(each["query_id"] for each in found) == Counter(
        str(each["query_id"]) for each in bodies
    )
    return {each["query_id"]: each for each in found}


def test_every_program_ends_in_one_answer_whose_steps_were_told_as_they_finished(
    index: Path, model: PaidCalls
) -> None:
    pipeline = Pipeline(index, {})
    found = run(pipeline, *asked())
    pipeline.stop()
    for name, kinds in STEPS_OF.items():
        answer = found[name]
        assert answer["status"] == "ok", answer
        assert [step["kind"] for step in answer["steps"]] == kinds, name
        assert answer["usage"]["output_tokens"] >= sum(one["tokens"] for one in answer["steps"])
    assert "steps" not in found["plain"]
    assert found["corrective"]["citations"][0]["doc_id"] in {
        each["id"] for each in found["corrective"]["retrieved"]
    }
    assert steps_told(pipeline) == {name: found[name]["steps"] for name in STEPS_OF}
    searched = found["hyde"]["steps"][1]
    assert searched["titles"] and len(searched["titles"]) == len(searched["doc_ids"])


def test_no_finished_step_of_mixed_workflows_runs_again_when_services_are_killed(
    index: Path, model: PaidCalls
) -> None:
    pipeline = Pipeline(index, {})
    run(pipeline, *asked())
    pipeline.stop()
    wanted, needed = Counter(committed(pipeline.broker)), dict(model.turns)
    model.turns.clear()
    seed = random.randrange(10**6)
    kills = random.Random(seed)
    steps = {name: Steps("producer.commit", nth=kills.randrange(2, 6)) for name in SERVICES}
    with silent_deaths():
        killed = Pipeline(index, steps)
        found = run(killed, *asked())
        killed.stop()
    assert killed.kills >= 1, f"seed {seed}"
    assert all(each["status"] == "ok" for each in found.values())
    assert Counter(committed(killed.broker)) == wanted, f"seed {seed}: a step has two records"
    assert model.turns.keys() == needed.keys()
    for call, turns in model.turns.items():
        assert set(turns) == set(needed[call]), f"seed {seed}: a call came again after its commit"
        assert len(turns) <= len(needed[call]) + 1, f"seed {seed}: the generator was killed once"


def test_a_program_that_fails_at_its_first_step_ends_as_one_that_fails_later(
    index: Path, model: PaidCalls
) -> None:
    early = GRAPH | {"edges": [{"from": "START", "to": "search"}, *GRAPH["edges"][1:]]}
    pipeline = Pipeline(index, {})
    found = run(pipeline, {"query_id": "early", "text": "why?", "workflow": {"graph": early}})
    pipeline.stop()
    assert found["early"]["error"]["type"] == "workflow_failed"
    assert "node 'search' uses {subquestion}, which no node has made yet" in str(
        found["early"]["error"]
    )


def test_a_step_that_is_refused_is_told_with_those_before_it_and_its_letter_can_be_replayed() -> (
    None
):
    begun = WORKFLOWS.begin(a_query(text="why?", workflow="hyde"))
    (guess,) = WORKFLOWS.asked(begun).steps
    query = with_results(begun, [StepResult(digest=guess.digest(), text="A guess.")])
    (search,) = WORKFLOWS.asked(query).steps
    assert isinstance(search, Retrieve)
    output = asked_query(source=a_source(7)).searched(search_query(query, [search], NOW_US), NOW_US)
    assert output is not None
    message = a_message(RETRIES.name, 3, key=output.key, value=output.value, headers=output.headers)
    step = read_query(message)
    error = RecordError("processing_failed", "no", query_id=step.query_id)
    unit = a_unit(1, step, message)
    letter, answer = QueryEnds("grouper").refused(unit, error, group="g", now_us=NOW_US).outputs
    assert decode_query(letter.value, output.headers, a_source(7)) == begun.journal.root
    told = decode(Answer, answer.value, answer.headers)
    assert [(each.kind, each.text) for each in told.steps] == [("generate", "A guess.")]


def test_what_no_search_takes_is_refused_before_a_step_is_paid(
    index: Path, model: PaidCalls
) -> None:
    pipeline = Pipeline(index, {})
    found = run(pipeline, {"query_id": "n", "text": "why?", "workflow": "hyde", "nprobe": 9_999})
    pipeline.stop()
    assert found["n"]["error"]["type"] == "invalid_value"
    assert model.requests == []


def test_two_records_of_one_id_get_one_text_and_another_question_a_conflict(
    index: Path, model: PaidCalls
) -> None:
    pipeline = Pipeline(index, {})
    body = {"query_id": "same", "text": "why?", "workflow": "recomp"}
    for count, bodies in ((2, [body, body]), (3, [body]), (4, [{**body, "workflow": "irg"}])):
        pipeline.publish(*bodies)
        pipeline.turn(until=lambda count=count: len(answers(pipeline)) >= count)
    pipeline.stop()
    texts = [(each["status"], each["replayed"], each.get("answer")) for each in answers(pipeline)]
    assert texts[0][:2] == ("ok", False)
    assert texts[1:3] == [("ok", True, texts[0][2])] * 2
    assert texts[3] == ("failed", False, None)
    assert answers(pipeline)[3]["error"]["type"] == "conflict"
