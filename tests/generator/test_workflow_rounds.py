"""Turns of workflows in the generator: what a step wrote is kept, whatever comes after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carpool.workflow import Found, Generate
from generator.llm.protocol import PromptRefused
from generator.prompts import prepare_prompt
from generator.settings import GeneratorSettings
from schemas.query import Generation
from tests.generator.memory_llm import MemoryLlm, Reply
from tests.generator.stage import running
from tests.generator.workflow_units import WORKFLOWS, begun, ended, next_query, searched
from tests.records import a_query, a_retrieval, some_hits

SETTINGS = GeneratorSettings()


def test_a_text_that_no_record_can_carry_is_written_without_what_cannot_be() -> None:
    engine = MemoryLlm(script=[Reply(text="half \ud83d, nul \x00.")])
    with running(engine) as run:
        run.offer(begun())
        run.wait(lambda: len(run.sink.dones) == 1)
        assert next_query(run.sink.dones[0].outputs[0]).text == "half ?, nul ."


def test_the_text_that_exceeds_a_limit_is_the_partial_answer_and_is_counted() -> None:
    engine = MemoryLlm(script=[Reply(text="Only this was written.")])
    with running(engine, workflows=replace(WORKFLOWS, tokens_max=2)) as run:
        answer = ended(run, begun())
    assert (answer.status, answer.answer) == ("partial", "Only this was written.")
    assert answer.error is not None and answer.error.type == "workflow_limit"
    assert [step.kind for step in answer.steps] == ["generate"]
    assert answer.usage is not None and answer.usage.output_tokens == 4


def test_what_was_found_is_told_where_the_next_step_fails() -> None:
    with running(MemoryLlm(script=[Reply(error=PromptRefused("x"))])) as run:
        answer = ended(run, searched("irg"))
    assert (answer.status, answer.error and answer.error.type) == ("failed", "llm_refused")
    assert [step.kind for step in answer.steps] == ["retrieve"]


@pytest.mark.parametrize(("reason", "status"), [("stop", "ok"), ("length", "partial")])
def test_an_answer_that_a_step_wrote_is_whole_only_if_its_text_is(reason: str, status: str) -> None:
    script = [Reply(text="A guess."), Reply(text="So it is [1].", finish_reason=reason)]
    with running(MemoryLlm(script=script), workflows=WORKFLOWS) as run:
        answer = ended(run, begun("text_first"))
    assert (answer.status, answer.finish_reason) == (status, reason)
    assert answer.answer == "So it is [1]."


def test_no_text_of_a_workflow_is_of_another_model_than_its_query_asks_for() -> None:
    engine = MemoryLlm()
    with running(engine, workflows=WORKFLOWS) as run:
        answer = ended(run, begun("text_first", generation=Generation(model="other")))
    assert (answer.status, answer.error and answer.error.type) == ("failed", "unsupported")
    assert engine.requests == []


def test_passages_that_a_prompt_names_often_are_counted_as_often() -> None:
    often = Generate(prompt="{docs}\n" * 100, docs=Found(some_hits(3)))
    retrieval = a_retrieval(a_query(text="why?"), some_hits(3))
    prepared = prepare_prompt(retrieval, SETTINGS, {}, step=often)
    assert len(prepared.request.user) <= SETTINGS.prompt_chars_max


def test_an_answer_names_the_clusters_that_an_earlier_search_could_not_read() -> None:
    with running(MemoryLlm()) as run:
        answer = ended(run, searched("irg", skipped_clusters=(4,)))
    assert (answer.status, answer.error and answer.error.type) == ("partial", "index_damaged")


def test_a_query_that_is_withdrawn_while_some_of_its_texts_are_written_ends_once() -> None:
    engine = MemoryLlm(script=[Reply(text="One."), Reply(hangs_after=0)])
    with running(engine) as run:
        one = searched("recomp")
        run.offer(one)
        run.wait(lambda: run.metric("workflow_steps_total", kind="generate") == 1)
        run.stage.cancel(one.id)
        (answer,) = run.wait_for_answers(1)
        run.wait(lambda: run.metric("llm_requests_in_flight") == 0)
        assert [each.status for each in run.sink.answers] == ["cancelled"]
        assert run.metric("workflow_steps_in_progress", kind="generate") == 0
    assert [step.kind for step in answer.steps] == ["retrieve"]
