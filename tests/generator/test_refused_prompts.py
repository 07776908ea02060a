"""A prompt that the LLM server always refuses, through the stage and over HTTP: others go on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from carpool.testing.llm_server import LlmServer
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmRefusal
from generator.settings import LlmSettings
from tests.clocks import HandClock
from tests.generator.memory_llm import MemoryLlm, Reply
from tests.generator.stage import LLM, running, unit


@pytest.mark.parametrize("refused", ["429", "403", "404", "504", "307", "html"])
def test_good_questions_are_answered_behind_one_that_is_always_refused(refused: str) -> None:
    with LlmServer() as server:
        server.refused["DROP TABLE"] = refused
        llm = LlmSettings(base_url=server.url, model=server.model, later_ms_max=1_000)
        with running(OpenAiLlm(llm), llm=llm, clock=HandClock(step_us=100)) as run:
            bad = unit("; DROP TABLE users")
            run.offer(bad)
            run.wait(lambda: server.requests.faulted > 0)
            answers = run.ask(*(unit(f"good {number}") for number in range(20)))
            answers = [each for each in answers if each.query_id != f"q-{bad.id}"]
            assert run.stage.not_ready() == ()
            failed = next(
                each for each in run.wait_for_answers(21) if each.query_id == f"q-{bad.id}"
            )
            assert run.metric("llm_requests_total", outcome="canary") > 0
        assert server.last is not None and server.last.path == "/v1/completions", "still token ids"
    assert {each.status for each in answers} == {"ok"}
    assert failed.status == "failed" and failed.error is not None
    assert (failed.error.type, failed.error.retryable) == ("llm_refused", True)


def test_a_question_that_waits_is_named_with_what_the_server_said_and_the_service_is_ready() -> (
    None
):
    too_large = Reply(text="", error=LlmRefusal("busy", "Request too large", retry_after_s=60))
    clock = HandClock(step_us=10)
    with running(MemoryLlm(script=[too_large] * 5), clock=clock) as run:
        ids = [f"{name}-{'x' * 200}" for name in "abcde"]
        for name in ids:
            run.offer(unit(name, query={"query_id": name}))
        run.wait(lambda: run.stage.notes()[-1:] == ("2 more queries are refused",))
        first = run.stage.notes()[0]
        assert run.stage.not_ready() == () and run.stage.credit().records > 0
        assert first == (
            f"query {ids[0][:100]!r} is refused since 2027-01-15 08:00:00+00:00 (requests: 1): "
            "Request too large"
        )
        clock.sleep(61_000_000)
        assert {each.status for each in run.wait_for_answers(5)} == {"ok"}
        assert run.stage.notes() == ()


def test_equal_questions_count_together() -> None:
    broken = Reply(text="", error=LlmRefusal("forbidden", "blocked"))
    llm = msgspec.structs.replace(LLM, tries_max=3)
    engine = MemoryLlm(script=[broken] * 1_000)
    with running(engine, llm=llm, clock=HandClock(step_us=100)) as run:
        answers = run.ask(*(unit("the same") for _ in range(50)))
    assert {each.status for each in answers} == {"failed"}
    assert len(engine.requests) < 3 * 8 + 50, "not three for each"


@pytest.mark.parametrize(
    ("refused", "said"), [("403", "set CARPOOL_LLM_API_KEY"), ("404", "set llm.model to one")]
)
def test_what_a_server_refuses_of_every_prompt_is_its_own_state_and_no_question_fails(
    refused: str, said: str
) -> None:
    with LlmServer() as server:
        server.refused[""] = refused
        llm = LlmSettings(base_url=server.url, model=server.model, tries_max=1)
        with running(OpenAiLlm(llm), llm=llm, clock=HandClock(step_us=100)) as run:
            run.offer(*(unit(f"good {number}") for number in range(20)))
            run.wait(lambda: bool(run.stage.not_ready()) and server.requests.faulted > 40)
            assert said in server_said(run.stage.not_ready())
            assert run.sink.dones == [] and run.stage.notes() == ()
            server.refused.clear()
            assert {each.status for each in run.wait_for_answers(20)} == {"ok"}


def server_said(reasons: Sequence[str]) -> str:
    (reason,) = reasons
    return reason
