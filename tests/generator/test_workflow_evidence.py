"""What searches of a workflow found is in a prompt, or is named as left out of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from carpool.loop.stage import Unit
from carpool.workflow import Answer, Generate, Program, Retrieve, Run, workflow
from carpool.workflow.load import load_programs
from carpool.workflow.workflows import Workflows
from generator.settings import GeneratorSettings
from schemas.answer import Answer as AnswerRecord
from schemas.codec import decode
from schemas.hit import Hit
from schemas.query import Query
from schemas.record import ClusterId
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, RETRIES
from tests.deploy.doc_blocks import program_of_guide
from tests.generator.memory_llm import MemoryLlm, Reply
from tests.generator.stage import Running, running, unit
from tests.generator.workflow_units import next_journal

SHORT = GeneratorSettings(prompt_chars_max=540)
"""Room for four passages of `found`."""


@workflow("collects", version=1)
def collects(question: str) -> Run:
    found = yield Retrieve(question, top_k=3)
    for number in range(2):
        grade = yield Generate("grade", question=question, passages=found)
        if grade.text == "Yes.":
            break
        found = found + (yield Retrieve(f"{question} {number}", top_k=3))
    yield Generate("grade", question=question, passages=found)
    return Answer("cited", question=question, passages=found)


@workflow("decomposes", version=1)
def decomposes(question: str) -> Run:
    lists = yield [Retrieve(f"{question} {part}", top_k=2) for part in "abcd"]
    return Answer("cited", question=question, passages=lists[0] + lists[1] + lists[2] + lists[3])


@workflow("chooses", version=1)
def chooses(question: str) -> Run:
    one, other = yield [Retrieve("x", top_k=3), Retrieve("y", top_k=3)]
    return Answer("cited", question=question, passages=one + other, passages_max=4)


@workflow("says", version=1)
def says(question: str) -> Run:
    one, other = yield [Retrieve("x", top_k=3), Retrieve("y", top_k=3)]
    said = yield Generate("answer_part", question=question, passages=one + other)
    return Answer(text=said, passages=one + other)


def found(text: str, count: int) -> tuple[Hit, ...]:
    """As many passages, which no other search finds; each has 70 characters in a prompt."""
    return tuple(
        Hit(
            doc_id=f"{text}/{n}",
            score=1 / n,
            cluster=ClusterId(1),
            title=f"{text}/{n}",
            text="word " * 10,
        )
        for n in range(1, count + 1)
    )


def asked(run: Running, program: Program) -> AnswerRecord:
    """Runs a workflow whose searches find what `found` says."""
    one = begun_of(program)
    while True:
        done = len(run.sink.dones)
        run.offer(one)
        run.wait(lambda done=done: len(run.sink.dones) > done)
        output = run.sink.dones[done].outputs[0]
        if output.topic == ANSWERS.name:
            return decode(AnswerRecord, output.value, output.headers)
        hits, other_hits, journal = (), (), next_journal(output)
        if output.topic == RETRIES.name:
            query = decode(Query, output.value, output.headers)
            hits = found(query.text, query.top_k)
            other_hits = tuple(found(each.text, each.top_k) for each in journal.other_searches)
        one = unit("why?", found=hits, other_hits=other_hits, query={"journal": journal})


def workflows_of(program: Program) -> Workflows:
    return Workflows(programs={(program.name, 1): program}, steps_max=24, tokens_max=8_192)


def begun_of(program: Program) -> Unit[Retrieval]:
    query = Query(query_id="q", text="why?", workflow=program.name)
    journal = workflows_of(program).begin(query).journal
    return unit("why?", found=(), query={"journal": journal})


def titles(prompt: str) -> list[str]:
    return re.findall(r"^\[\d+\] (.*?):", prompt, re.MULTILINE)


@pytest.fixture
def compare(tmp_path: Path) -> Program:
    (tmp_path / "compare.py").write_text(program_of_guide())
    return load_programs(str(tmp_path / "compare.py"))["compare", 1]


def test_a_loop_that_collects_evidence_shows_the_new_passages_in_each_round() -> None:
    engine = MemoryLlm(script=[Reply(text="No.")] * 3)
    with running(engine, workflows=workflows_of(collects)) as run:
        answer = asked(run, collects)
    prompts = [request.user for request in engine.requests]
    assert [len(titles(each)) for each in prompts] == [3, 6, 9, 9]
    assert len(set(prompts[:3])) == 3
    assert all(each.in_prompt for each in answer.retrieved)
    assert not any(step.left_out for step in answer.steps)


def test_the_guides_own_program_shows_all_four_passages(compare: Program) -> None:
    engine = MemoryLlm(script=[Reply(text="x"), Reply(text="y")])
    with running(engine, workflows=workflows_of(compare)) as run:
        asked(run, compare)
    assert titles(engine.requests[-1].user) == ["x/1", "x/2", "y/1", "y/2"]


@pytest.mark.parametrize(
    ("program", "settings", "shown"),
    [
        (decomposes, SHORT, {1: "why? a/1", 3: "why? b/1", 5: "why? c/1", 7: "why? d/1"}),
        (chooses, None, {1: "x/1", 2: "x/2", 4: "y/1", 5: "y/2"}),
    ],
)
def test_where_the_room_is_short_the_best_of_each_search_are_shown_by_their_own_numbers(
    program: Program, settings: GeneratorSettings | None, shown: dict[int, str]
) -> None:
    engine = MemoryLlm(script=[Reply(text="So it is. [3] [2] [1]")])
    with running(engine, settings, workflows=workflows_of(program)) as run:
        answer = asked(run, program)
    numbered = re.findall(r"^\[(\d+)\] (.*?):", engine.requests[-1].user, re.MULTILINE)
    assert {int(n): title for n, title in numbered} == shown
    in_prompt = {n: each.id for n, each in enumerate(answer.retrieved, 1) if each.in_prompt}
    assert in_prompt == shown
    cited = {each.n: each.doc_id for each in answer.citations}
    assert cited == {n: shown[n] for n in (1, 2, 3) if n in shown}
    assert {each.n for each in answer.invented_citations} == {1, 2, 3} - shown.keys()


def test_a_step_names_what_its_prompt_left_out_and_its_text_cites_no_such_passage() -> None:
    engine = MemoryLlm(script=[Reply(text="So it is [1] [3] [4].")])
    settings = GeneratorSettings(prompt_chars_max=360)
    with running(engine, settings, workflows=workflows_of(says)) as run:
        answer = asked(run, says)
    (step,) = [step for step in answer.steps if step.kind == "generate"]
    assert titles(engine.requests[-1].user) == ["x/1", "x/2", "y/1"]
    assert step.left_out == ("x/3", "y/2", "y/3")
    assert [c.doc_id for c in answer.citations] == ["x/1", "y/1"]
    assert [c.n for c in answer.invented_citations] == [3]
    assert [each.in_prompt for each in answer.retrieved] == [True, True, False, True, False, False]


@pytest.mark.parametrize("most", [1, 2])
def test_a_limit_of_passages_is_of_each_search(most: int) -> None:
    engine = MemoryLlm(script=[Reply(text="No.")] * 3)
    settings = GeneratorSettings(passages_max=most)
    with running(engine, settings, workflows=workflows_of(collects)) as run:
        answer = asked(run, collects)
    shown = [titles(request.user) for request in engine.requests]
    searches = ("why?", "why? 0", "why? 1")
    each = [[f"{text}/{n}" for n in range(1, most + 1)] for text in searches]
    assert shown[:3] == [each[0], each[0] + each[1], each[0] + each[1] + each[2]]
    left = [step.left_out for step in answer.steps if step.kind == "generate"][-1]
    assert {*left, *shown[2]} == {f"{text}/{n}" for text in searches for n in (1, 2, 3)}
