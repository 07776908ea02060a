"""The real thing: vLLM with a small model. Asserts what holds for any model, never times, and never
that it is right.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import pytest

from bench.data.evaluation import find_data, read_passages, read_vectors
from carpool.clock import SystemClock
from generator.llm.kv_events import KvEvents
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmFinished, LlmRequest
from generator.plan.kv_tree import KvTree, KvTreeEvent
from generator.prompts import load_templates, prepare_prompt
from generator.settings import GeneratorSettings, LlmSettings
from schemas.record import ClusterId
from schemas.retrieval import Hit
from tests.clocks import HandClock
from tests.generator.stage import running, unit
from tests.generator.vllm_server import VllmServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.vllm

TEXTS = (
    (
        "The Times",
        "The Times is a British daily national newspaper based in London. It began in 1785 under "
        "the title The Daily Universal Register, and took its present name on 1 January 1788.",
    ),
    (
        "Lake Baikal",
        "Lake Baikal is a rift lake in Siberia. It is the deepest lake in the world, "
        "with a depth of 1,642 m.",
    ),
    (
        "Moby-Dick",
        "Moby-Dick is an 1851 novel by the American writer Herman Melville about the "
        "whaling ship Pequod.",
    ),
)
PASSAGES = tuple(
    Hit(doc_id=title, score=0.9 - n / 10, cluster=ClusterId(n), title=title, text=text)
    for n, (title, text) in enumerate(TEXTS)
)
QUESTIONS = (
    "When did The Times begin?",
    "What is the deepest lake in the world?",
    "Who wrote Moby-Dick?",
)


class RealClock(HandClock):
    def __init__(self) -> None:
        self._clock = SystemClock()

    def now_us(self) -> int:
        return self._clock.now_us()


def test_real_questions_get_answers_that_cite_what_was_given_and_a_long_prompt_fails_alone(
    vllm_server: VllmServer,
) -> None:
    llm = LlmSettings(base_url=vllm_server.url, model=vllm_server.model, sends_priority=True)
    settings = GeneratorSettings(prompt_chars_max=100_000)
    with running(OpenAiLlm(llm), settings, llm, RealClock(), until_open=False) as run:
        run.wait(lambda: not run.stage.not_ready())
        questions = (*QUESTIONS, "why " * 5_000)
        run.offer(*(unit(question, found=PASSAGES) for question in questions))
        run.wait(lambda: len(run.sink.dones) == len(questions))
    failed, *answers = sorted(run.sink.answers, key=lambda answer: answer.status != "failed")
    assert failed.status == "failed" and failed.error is not None
    assert failed.error.type == "llm_refused" and "4096" in failed.error.message
    for answer in answers:
        assert answer.status in ("ok", "partial"), answer.error
        assert answer.answer
        assert answer.model == vllm_server.model
        assert answer.quotes[0].text in PASSAGES[answer.quotes[0].n - 1].text
        for citation in answer.citations:
            assert citation.doc_id == PASSAGES[citation.n - 1].doc_id
        assert answer.usage is not None
        assert answer.usage.input_tokens > 100 and answer.usage.output_tokens > 5
        assert {"queue_llm", "ttft", "decode", "total"} <= answer.timings_ms.keys()


PROMPTS = 100
PAIRS = 5
BLOCK_TOKENS = 32
SETTINGS = GeneratorSettings()


def real_requests() -> list[LlmRequest]:
    """Questions with their three nearest passages, by exact search, in the built-in template."""
    data = find_data(None)
    passages = read_passages(data.corpus_path)
    rows = read_vectors(data.vectors_path("wikipedia-16k"))
    questions = data.questions("queries-hotpotqa")[:PROMPTS]
    vectors = read_vectors(data.vectors_path("queries-hotpotqa"))[: len(questions)]
    nearest = (-(vectors @ rows.T)).argsort(axis=1)[:, :3]
    templates = load_templates(SETTINGS)
    requests = []
    for question, found in zip(questions, nearest, strict=True):
        hits = tuple(
            Hit(
                doc_id=passages[row].doc_id,
                score=1.0,
                cluster=ClusterId(0),
                title=passages[row].title,
                text=passages[row].text,
            )
            for row in found
        )
        record = unit(question.text, found=hits).record
        requests.append(prepare_prompt(record, SETTINGS, templates).request)
    return requests


async def chat_ids(engine: OpenAiLlm, request: LlmRequest) -> tuple[int, ...]:
    """The server's own ids of the whole chat."""
    messages = [
        {"role": "system", "content": request.system},
        {"role": "user", "content": request.user},
    ]
    return tuple(await engine._ask_for_ids({"messages": messages, "add_generation_prompt": True}))


async def finished(engine: OpenAiLlm, request: LlmRequest) -> LlmFinished:
    *_, end = [event async for event in engine.stream(request)]
    assert isinstance(end, LlmFinished)
    return end


def use(server: VllmServer, work: Any) -> Any:
    async def main() -> Any:
        engine = OpenAiLlm(LlmSettings(base_url=server.url, model=server.model))
        try:
            await engine.check()
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


@pytest.mark.data
def test_the_ids_of_100_real_prompts_are_those_of_the_servers_own_chats(
    vllm_server: VllmServer,
) -> None:
    requests = real_requests()
    assert len({request.user for request in requests}) == PROMPTS

    async def count_equal(engine: OpenAiLlm) -> tuple[int, int]:
        made = await asyncio.gather(*(engine.tokenize(request) for request in requests))
        chats = [await chat_ids(engine, request) for request in requests]
        return sum(map(bool, made)), sum(map(tuple.__eq__, made, chats))

    assert use(vllm_server, count_equal) == (PROMPTS, PROMPTS)


@pytest.mark.data
def test_the_tree_of_kv_events_agrees_with_the_cached_tokens_of_every_answer(
    vllm_server: VllmServer,
) -> None:
    """The server has answered before, so the tree begins with a replay."""
    requests = [replace(request, max_tokens=1) for request in real_requests()[:PAIRS]]
    tree = KvTree()

    def happened(event: KvTreeEvent) -> None:
        step = tree.step(event)
        tree.check_integrity()
        if step.replay_from is not None:
            events.replay(step.replay_from)

    async def cached(ids: tuple[int, ...]) -> None:
        full = len(ids) // BLOCK_TOKENS * BLOCK_TOKENS
        said = "the server says that it has cached a prompt"
        await wait_until_async(lambda: tree.cached_of(ids) == full, said)

    async def ask_all(engine: OpenAiLlm) -> None:
        following = asyncio.create_task(events.run())
        fresh = (requests[0].segments[0], f"Question: {uuid.uuid4()} " * 20)
        first = replace(requests[0], segments=fresh, user="".join(fresh))
        await finished(engine, first)
        await cached(await engine.tokenize(first))
        for request in (*requests, *reversed(requests)):
            ids = await engine.tokenize(request)
            expected = tree.cached_of(ids[:-1])
            end = await finished(engine, request)
            assert expected == end.cached_tokens, (expected, end)
            await cached(ids)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    events = KvEvents(vllm_server.kv_events, happened, lambda: pytest.fail("not readable"))
    use(vllm_server, ask_all)
    assert (tree.block_tokens, tree.is_blind) == (BLOCK_TOKENS, False)
    assert tree.counts["emptied"] == 0
