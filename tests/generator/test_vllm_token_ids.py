"""Prompts as token ids at a real vLLM: they are the server's own, and their prefixes are cached."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest

from bench.data.evaluation import find_data, read_passages, read_vectors
from carpool.testing.vllm_server import VllmServer
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmFinished, LlmRequest
from generator.prompts import load_templates, prepare_prompt
from generator.settings import GeneratorSettings, LlmSettings
from schemas.record import ClusterId
from schemas.retrieval import Hit
from tests.generator.stage import unit

pytestmark = [pytest.mark.vllm, pytest.mark.data, pytest.mark.timeout(600)]

PROMPTS = 300
PAIRS = 10
BLOCK_TOKENS = 32
SETTINGS = GeneratorSettings()


def real_requests() -> list[LlmRequest]:
    """Questions with their three nearest passages, by exact search, in the built-in template."""
    data = find_data(None)
    passages = read_passages(data.corpus_path)
    rows = read_vectors(data.vectors_path("wikipedia-16k"))
    questions = data.questions("queries-hotpotqa", PROMPTS)
    vectors = read_vectors(data.vectors_path("queries-hotpotqa"))[: len(questions)]
    nearest = (-(vectors @ rows.T)).argsort(axis=1)[:, :3]
    templates = load_templates(SETTINGS)
    requests = []
    for question, found in zip(questions, nearest, strict=True):
        hits = tuple(
            Hit(
                doc_id=str(passages[row].id),
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


def test_the_ids_of_300_real_prompts_are_those_of_the_servers_own_chats(
    vllm_server: VllmServer,
) -> None:
    requests = real_requests()
    assert len({request.user for request in requests}) == PROMPTS

    async def count_equal(engine: OpenAiLlm) -> tuple[int, int]:
        made = await asyncio.gather(*(engine.tokenize(request) for request in requests))
        chats = [await chat_ids(engine, request) for request in requests]
        return sum(map(bool, made)), sum(map(tuple.__eq__, made, chats))

    assert use(vllm_server, count_equal) == (PROMPTS, PROMPTS)


def test_full_blocks_of_a_warmed_prefix_are_hit_by_its_prompt(vllm_server: VllmServer) -> None:
    """A prompt with the passages of another one, and another question, finds them cached."""
    requests = real_requests()[:PAIRS]

    async def hits(engine: OpenAiLlm) -> list[tuple[int, int]]:
        counts = []
        for place, request in enumerate(requests):
            segments = (*request.segments[:-2], f"Question: {place}?\n\n", request.segments[-1])
            request = replace(request, max_tokens=1, schema=None)
            warm = replace(request, segments=segments, user="".join(segments))
            ids = [await engine.tokenize(one) for one in (warm, request)]
            shared = sum(
                1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*ids, strict=False))
            )
            await finished(engine, warm)
            end = await finished(engine, request)
            assert end.input_tokens == len(ids[1])
            counts.append((end.cached_tokens, shared // BLOCK_TOKENS * BLOCK_TOKENS))
        return counts

    counts = use(vllm_server, hits)
    assert all(full > 2 * BLOCK_TOKENS for _, full in counts)
    assert [cached for cached, _ in counts] == [full for _, full in counts]
