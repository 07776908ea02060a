"""The generator with several LLM servers: one dies, comes back, or has another model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from carpool.testing.llm_server import LlmServer
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmRefusal, LlmRequest
from generator.llm.servers import LlmServers
from generator.settings import LlmSettings
from tests.generator.memory_llm import MemoryLlm
from tests.generator.stage import Running, running, unit
from tests.rig.llm_dialects import DialectServer

LLM = LlmSettings()
REQUEST = LlmRequest(id="1", system="s", user="why?", max_tokens=16, segments=("", "why?"))


def engines_of(servers: Sequence[LlmServer]) -> list[OpenAiLlm]:
    return [OpenAiLlm(LlmSettings(base_url=one.url, model=one.model)) for one in servers]


@pytest.fixture(autouse=True)
def longer_pauses(quick_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generator.plan.health.BACKOFF_US_MIN", 20_000)
    monkeypatch.setattr("generator.plan.health.BACKOFF_US_MAX", 50_000)
    # A prompt goes to another server, and not back to the one that is dying.
    monkeypatch.setattr("generator.plan.refusals.PAUSE_US_MIN", 500_000)
    monkeypatch.setattr("generator.plan.refusals.PAUSE_US_MAX", 500_000)


def open_servers(run: Running, servers: Sequence[LlmServer]) -> list[bool]:
    run.tick()
    labels = [f"127.0.0.1:{server.port}" for server in servers]
    return [run.metric("llm_server_open", server=label) == 1 for label in labels]


def test_a_server_that_dies_loses_no_answer_and_takes_work_again_when_it_is_back() -> None:
    with LlmServer(tokens_per_second=200) as first, LlmServer(tokens_per_second=200) as second:
        servers = [first, second]
        with running(engines_of(servers), llm=LLM) as run:
            run.wait(lambda: all(open_servers(run, servers)))
            units = [unit(f"question {index}") for index in range(40)]
            run.offer(*units)
            run.wait(lambda: first.requests.completed >= 8 and first.requests.in_flight > 0)
            first.__exit__()
            run.wait(lambda: open_servers(run, servers) == [False, True])
            assert run.stage.not_ready() == (), "the other one takes prompts"
            answers = run.wait_for_answers(40)
            run.wait(lambda: second.requests.in_flight == 0)
            completed = first.requests.completed_by_id + second.requests.completed_by_id
            with LlmServer(port=first.port, tokens_per_second=200) as again:
                run.wait(lambda: all(open_servers(run, [again, second])))
                run.offer(*(unit() for _ in range(10)))
                more = run.wait_for_answers(50)
                assert again.requests.completed > 0, "the server takes prompts again"
            assert first.requests.in_flight == 0
    assert sorted(answer.query_id for answer in answers) == sorted(f"q-{one.id}" for one in units)
    assert {answer.status for answer in more} == {"ok"}
    assert max(answer.attempts for answer in answers) == 2
    assert first.requests.disconnected >= 1
    assert len(completed) == 40, "none was lost"
    assert set(completed.values()) == {1}, "none was generated twice to its end"


def test_a_server_with_another_model_is_refused() -> None:
    async def check() -> None:
        engines = [MemoryLlm(sample_ids=ids) for ids in ((1, 2), (), (1, 3), (1, 2))]
        servers = LlmServers(engines)
        for server in (0, 1, 3):
            await servers.check(server)
        with pytest.raises(LlmRefusal, match="other token ids of a text than the server at memory"):
            await servers.check(2)
        for server in (0, 3):
            engines[server].sample_ids = ()  # they are found out about again
        await servers.check(2)

    asyncio.run(check())


def test_a_server_that_fails_its_check_is_no_measure_for_others() -> None:
    async def check() -> None:
        down = LlmRefusal("unreachable", "it cannot be reached")
        engines = [MemoryLlm(checks=checks, sample_ids=(1, 2)) for checks in ([None, down], [])]
        servers = LlmServers(engines)
        for server in (0, 1):
            await servers.check(server)
        with pytest.raises(LlmRefusal, match="cannot be reached"):
            await servers.check(0)
        engines[1].sample_ids = (1, 3)  # another model on both, one after the other
        await servers.check(1)

    asyncio.run(check())


def test_servers_with_one_tokenizer_make_the_same_sample() -> None:
    async def check(engines: Sequence[OpenAiLlm]) -> None:
        servers = LlmServers(engines)
        try:
            for server in range(3):
                await servers.check(server)
        finally:
            await servers.close()
        assert len(engines[0].sample_ids) > 50
        assert engines[0].sample_ids == engines[1].sample_ids
        assert engines[2].sample_ids == (), "the server does not tokenize as vLLM does"

    with LlmServer() as one, LlmServer() as other, DialectServer("ollama") as text:
        asyncio.run(check(engines_of([one, other, text])))


def test_a_prompt_is_tokenized_by_a_server_that_answers() -> None:
    class Refusing(MemoryLlm):
        async def tokenize(self, request: LlmRequest) -> tuple[int, ...]:
            raise LlmRefusal("unreachable", f"down {self.name}")

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    up = MemoryLlm()
    servers = LlmServers([Refusing("a"), up, Refusing("b")])
    assert asyncio.run(servers.tokenize(REQUEST)) == asyncio.run(up.tokenize(REQUEST))
    with pytest.raises(LlmRefusal, match="down b"):
        asyncio.run(LlmServers([Refusing("a"), Refusing("b")]).tokenize(REQUEST))
