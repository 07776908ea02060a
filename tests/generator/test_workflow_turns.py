"""Turns of workflows in the generator: what a step wrote is kept, whatever comes after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

import schemas.answer
from carpool.loop.stage import Unit
from carpool.workflow import Answer, Found, Generate
from generator.llm.protocol import PromptRefused
from generator.outcomes import Outcomes
from generator.prompts import load_templates, prepare_prompt
from generator.settings import GeneratorSettings
from schemas.codec import decode
from schemas.query import Generation, Query
from schemas.retrieval import Retrieval
from schemas.topics import RETRIES
from schemas.workflow import Graph, InlineWorkflow
from tests.generator.memory_llm import MemoryLlm, Reply
from tests.generator.stage import WORKFLOWS, Running, running, unit
from tests.records import a_query, a_retrieval, some_hits

SETTINGS = GeneratorSettings()


def waiting(workflow: object, **more: Any) -> Unit[Retrieval]:
    """A workflow that waits for the text of its first step."""
    query = WORKFLOWS.begin(a_query(text="why?", workflow=workflow))
    return unit("why?", found=(), query={"journal": query.journal}, **more)


def graph(*edges: tuple[str, str], **nodes: dict[str, Any]) -> InlineWorkflow:
    body = {
        "nodes": [{"id": id, **node} for id, node in nodes.items()],
        "edges": [{"from": source, "to": to} for source, to in edges],
    }
    return InlineWorkflow(graph=msgspec.convert(body, Graph))


def next_query(run: Running) -> Query:
    """The query of the search that comes next."""
    run.wait(lambda: len(run.sink.dones) == 1)
    (output,) = run.sink.dones[0].outputs
    assert output.topic == RETRIES.name
    return decode(Query, output.value, output.headers)


def second_answer(run: Running) -> schemas.answer.Answer:
    """The answer that is handed over after another result."""
    run.wait(lambda: len(run.sink.dones) == 2)
    output = run.sink.dones[1].outputs[0]
    return decode(schemas.answer.Answer, output.value, output.headers)


def test_a_text_that_no_record_can_carry_is_written_without_what_cannot_be() -> None:
    engine = MemoryLlm(form="text", script=[Reply(text="half \ud83d, nul \x00.")])
    with running(engine) as run:
        run.offer(waiting("hyde"))
        assert next_query(run).text == "half ?, nul ."


def test_an_error_after_a_text_is_charged_to_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Outcomes, "go_on", broken)
    with running(MemoryLlm(form="text")) as run:
        charged: list[object] = []
        monkeypatch.setattr(run.sink, "charge", lambda parts, _: charged.extend(parts))
        one = waiting("hyde")
        run.offer(one)
        run.wait(lambda: bool(charged))
        assert charged == [(one.id, 0)]


def test_the_text_that_exceeds_a_limit_is_the_partial_answer_and_is_counted() -> None:
    engine = MemoryLlm(form="text", script=[Reply(text="Only this was written.")])
    with running(engine, workflows=replace(WORKFLOWS, tokens_max=2)) as run:
        (answer,) = run.ask(waiting("hyde"))
    assert (answer.status, answer.answer) == ("partial", "Only this was written.")
    assert answer.error is not None and answer.error.type == "workflow_limit"
    assert [step.kind for step in answer.steps] == ["generate"]
    assert answer.usage is not None and answer.usage.output_tokens == 4


def test_what_was_found_is_told_where_the_next_step_fails() -> None:
    engine = MemoryLlm(
        form="text", script=[Reply(text="A guess."), Reply(error=PromptRefused("x"))]
    )
    one = graph(
        ("START", "guess"), ("guess", "find"), ("find", "say"), ("say", "again"), ("again", "END"),
        guess={"prompt": "Guess.", "output": "guess"}, find={"query": "guess"},
        say={"prompt": "Say {docs}.", "output": "said"}, again={"prompt": "Again {said}."},
    )  # fmt: skip
    with running(engine) as run:
        run.offer(waiting(one))
        journal = next_query(run).journal
        run.offer(unit("why?", query={"journal": journal}))
        answer = second_answer(run)
    assert (answer.status, answer.error and answer.error.type) == ("failed", "llm_refused")
    assert [step.kind for step in answer.steps] == ["generate", "retrieve"]


@pytest.mark.parametrize(
    ("reason", "status", "finish_reason"), [("stop", "ok", "stop"), ("length", "partial", "length")]
)
def test_an_answer_that_a_step_wrote_is_whole_only_if_its_text_is(
    reason: str, status: str, finish_reason: str
) -> None:
    engine = MemoryLlm(form="text", script=[Reply(text="So it is [1].", finish_reason=reason)])
    one = graph(
        ("START", "find"), ("find", "say"), ("say", "find2"), ("find2", "END"),
        find={"query": "input"}, say={"prompt": "{docs}", "output": "said"},
        find2={"query": "said", "output": "more"},
    )  # fmt: skip
    begun = WORKFLOWS.begin(a_query(text="why?", workflow=one))
    with running(engine) as run:
        run.offer(
            unit("why?", query={"journal": msgspec.structs.replace(begun.journal, began_us=1)})
        )
        journal = next_query(run).journal
        run.offer(unit("why?", query={"journal": journal}))
        answer = second_answer(run)
    assert (answer.status, answer.finish_reason) == (status, finish_reason)
    assert answer.answer == "So it is [1]."


def test_a_step_is_asked_for_text_where_answers_are_json() -> None:
    templates, found = load_templates(SETTINGS), Found(some_hits(2))
    retrieval = a_retrieval(
        a_query(text="why?", generation=Generation(template="cited")), some_hits(2)
    )
    values: dict[str, Any] = {"question": "why?", "passages": found}
    step, answer = Generate("cited", **values), Answer("cited", **values)
    texts, json = (
        prepare_prompt(retrieval, SETTINGS, templates, form="json", step=one).request
        for one in (step, answer)
    )
    assert (texts.form, json.form) == ("text", "json")
    assert "JSON" not in texts.system + texts.user


def test_passages_that_a_prompt_names_often_are_counted_as_often() -> None:
    often = Generate(prompt="{docs}\n" * 100, docs=Found(some_hits(3)))
    retrieval = a_retrieval(a_query(text="why?"), some_hits(3))
    prepared = prepare_prompt(retrieval, SETTINGS, {}, step=often)
    assert len(prepared.request.user) <= SETTINGS.prompt_chars_max


def test_an_answer_names_the_clusters_that_an_earlier_search_could_not_read() -> None:
    one = graph(
        ("START", "find"), ("find", "again"), ("again", "say"), ("say", "END"),
        find={"query": "input"}, again={"query": "input", "output": "more"},
        say={"prompt": "{more}"},
    )  # fmt: skip
    begun = WORKFLOWS.begin(a_query(text="why?", workflow=one))
    searched = msgspec.structs.replace(begun.journal, began_us=1)
    with running(MemoryLlm(form="text")) as run:
        run.offer(unit("why?", query={"journal": searched}, skipped_clusters=(4,)))
        journal = next_query(run).journal
        run.offer(unit("why?", query={"journal": journal}))
        answer = second_answer(run)
    assert (answer.status, answer.error and answer.error.type) == ("partial", "index_damaged")


def test_a_query_that_is_withdrawn_while_some_of_its_texts_are_written_ends_once() -> None:
    engine = MemoryLlm(form="text", script=[Reply(text="One."), Reply(hangs_after=0)])
    begun = WORKFLOWS.begin(a_query(text="why?", workflow="recomp"))
    searched = msgspec.structs.replace(begun.journal, began_us=1)
    with running(engine) as run:
        one = unit("why?", query={"journal": searched})
        run.offer(one)
        run.wait(lambda: run.metric("workflow_steps_total", kind="generate") == 1)
        run.stage.cancel(one.id)
        (answer,) = run.wait_for_answers(1)
        run.wait(lambda: run.metric("llm_requests_in_flight") == 0)
        assert [each.status for each in run.sink.answers] == ["cancelled"]
        assert run.metric("workflow_steps_in_progress", kind="generate") == 0
    assert [step.kind for step in answer.steps] == ["retrieve"]
