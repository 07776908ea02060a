"""Steps of workflows in flight: equal ones are generated once; their order, counts and spans."""

from __future__ import annotations

from carpool.loop.stage import Done, Unit
from generator.llm.protocol import PromptRefused
from generator.settings import GeneratorSettings
from schemas.query import Generation
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS
from tests.generator.memory_llm import MemoryLlm, Reply
from tests.generator.stage import LLM, Running, running, unit
from tests.generator.workflow_units import begun, ended, next_journal, searched

ONE_SLOT = GeneratorSettings(concurrency=1)
HANGS = Reply(hangs_after=0)
CHAT = f"chat {LLM.model}"


def results_of(run: Running, *units: Unit[Retrieval]) -> list[Done]:
    """Offers units while the one slot is taken, so that all wait; returns what they become."""
    blocks = unit("who blocks?")
    run.offer(blocks)
    run.wait(lambda: run.metric("llm_requests_in_flight") == 1)
    run.offer(*units)
    run.stage.revoke(frozenset({blocks.id}), frozenset())
    run.wait(lambda: len(run.sink.dones) >= len(units))
    by_unit = {done.parts[0][0]: done for done in run.sink.dones}
    return [by_unit[one.id] for one in units]


def test_an_equal_step_is_generated_once_within_a_tenant_and_its_text_is_that_of_both() -> None:
    engine = MemoryLlm(script=[HANGS])
    with running(engine, ONE_SLOT) as run:
        units = [begun(), begun(), begun(tenant=b"acme")]
        first, second, of_tenant = results_of(run, *units)
        assert len(engine.requests) == 3
        assert run.metric("workflow_steps_total", kind="shared") == 1
        assert run.metric("workflow_steps_total", kind="generate") == 2
    ((paid,),), ((shared,),) = (next_journal(each.outputs[0]).rounds for each in (first, second))
    assert (shared.text, shared.digest) == (paid.text, paid.digest)
    assert (shared.is_shared, paid.is_shared) == (True, False)
    assert run.tokens("reused") == paid.input_tokens + paid.output_tokens > 0
    assert [each.name for each in second.operations] == ["step generate"]
    assert [each.name for each in first.operations] == ["step generate", CHAT]
    assert not next_journal(of_tenant.outputs[0]).rounds[0][0].is_shared


def test_a_step_of_a_query_that_refuses_reuse_is_not_shared() -> None:
    engine = MemoryLlm(script=[HANGS])
    alone = Generation(reuse=False)
    with running(engine, ONE_SLOT) as run:
        results_of(run, begun(generation=alone), begun(generation=alone))
        assert len(engine.requests) == 3


def test_the_next_equal_step_is_sent_if_the_prompt_of_the_first_is_refused() -> None:
    engine = MemoryLlm(script=[HANGS, Reply(error=PromptRefused("too long"))])
    with running(engine, ONE_SLOT) as run:
        refused, second = results_of(run, begun(), begun())
        assert refused.outputs[0].topic == ANSWERS.name
        assert not next_journal(second.outputs[0]).rounds[0][0].is_shared
        assert len(engine.requests) == 3


def test_the_next_equal_step_is_sent_if_the_first_is_revoked() -> None:
    engine = MemoryLlm(script=[HANGS])
    first, second = begun(), begun()
    with running(engine) as run:
        run.offer(first, second)
        run.wait(lambda: len(engine.requests) == 1)
        run.stage.revoke(frozenset({first.id}), frozenset())
        run.wait(lambda: len(run.sink.dones) == 1)
        assert run.sink.dones[0].parts == ((second.id, 0),)


def test_a_workflow_that_has_begun_goes_before_a_question_that_came_earlier() -> None:
    engine = MemoryLlm(script=[HANGS])
    with running(engine, ONE_SLOT) as run:
        results_of(run, unit("is it new?"), searched("irg"))
        assert [("is it new?" in each.user) for each in engine.requests] == [False, False, True]


def test_the_end_of_a_workflow_is_counted_with_its_steps_and_every_step_has_a_span() -> None:
    with running(MemoryLlm(), ONE_SLOT) as run:
        answer = ended(run, begun())
        operations = run.sink.dones[-1].operations
        assert [step.kind for step in answer.steps] == ["generate", "retrieve"]
        assert [each.name for each in operations] == ["step retrieve", CHAT]
        assert run.metric("workflow_steps_total", kind="retrieve") == 1
        assert run.metric("workflows_total", program="hyde", status=answer.status) == 1
        assert run.metric("workflow_length_steps_sum") == 2
        assert run.metric("workflow_length_rounds_sum") == 2
        assert run.metric("workflow_steps_in_progress", kind="generate") == 0
