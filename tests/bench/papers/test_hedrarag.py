"""The load of `carpool bench paper hedrarag`: its LLM server, and a baseline as a process."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from bench.core.accounting import answer_accounting
from bench.core.load import even
from bench.core.session import open_session
from bench.papers.hedrarag.contestants import baseline, python_of
from bench.papers.hedrarag.figures import promises
from bench.papers.hedrarag.loads import FIVE, steps_of, texts_of
from bench.papers.hedrarag.stepped_llm import DECODE_S, PREFILL_S, STEP_S, SteppedLlm
from carpool.errors import ConfigError
from producers.read_questions import Question
from schemas.topics import ANSWERS
from tests.e2e.support import build_index

SPEED = 10.0
TEXTS = {"hyde": {2}, "multistep": {4, 6, 7}, "irg": {3}, "recomp": {5}, "corrective": {2, 3}}
"""The texts of each program, its answer among them."""


async def written(url: str, model: str, requests: int) -> tuple[float, list[int], int]:
    """Returns the seconds of equal requests at once, the tokens of each, and of the prompt."""
    message: Any = {"role": "user", "content": "some words " * 200}
    async with AsyncOpenAI(
        base_url=url, api_key="-", http_client=DefaultAsyncHttpxClient(trust_env=False)
    ) as client:
        ask = client.chat.completions.create
        began_s = time.monotonic()
        replies = await asyncio.gather(
            *(ask(model=model, messages=[message], max_tokens=40) for _ in range(requests))
        )
    took_s, used = time.monotonic() - began_s, [reply.usage for reply in replies]
    assert all(used)
    tokens = [one.completion_tokens for one in used if one]
    return took_s, tokens, used[0].prompt_tokens if used[0] else 0


def test_no_text_is_written_sooner_than_the_measured_server_writes_it() -> None:
    with SteppedLlm(port=0, speed=SPEED) as server:
        for requests in (1, 4):
            took_s, tokens, ids = asyncio.run(written(server.url, server.model, requests))
            assert tokens == tokens[:1] * requests, "an equal prompt has an equal text"
            prefill_s = requests * ids / 1.7 * PREFILL_S
            steps_s = tokens[0] * STEP_S + (tokens[0] - 1) * requests * DECODE_S
            assert took_s >= 0.98 * (prefill_s + steps_s) / SPEED
        assert server.load() == (0, 0), "requests that ended have left"


def test_a_batch_runs_the_programs_and_answers_each_question_once(tmp_path: Path) -> None:
    index = build_index(tmp_path, documents=60, nlist=4)
    questions = [
        Question(id=f"{name}-{at}", text=f"Question {at}?", workflow=name)
        for name in FIVE
        for at in (1, 2)
    ]
    topics, stack = (ANSWERS.name,), baseline("blocking", sys.executable, tmp_path)
    with (
        SteppedLlm(port=0, speed=0.0) as server,
        open_session(index, tmp_path, {}, topics=topics, llm_url=server.url, **stack) as session,
    ):
        sent = session.send(questions, even(100.0))
        session.recorder.wait(sent.keys())
        answers = session.answers(sent)
        assert answer_accounting(sent, answers).holds
        for answer in answers:
            workflow = answer.query_id.partition("-")[0]
            assert texts_of(answer) in TEXTS[workflow] and steps_of(answer) > 1, workflow
        assert server.requests.started == sum(map(texts_of, answers))


def test_an_environment_without_langgraph_is_refused_with_the_way_to_make_it() -> None:
    with pytest.raises(ConfigError, match=r"langgraph==1\.2\.24\. Make it: requirements/install"):
        python_of(Path(sys.prefix))


def test_an_answer_that_is_lost_after_a_kill_breaks_a_promise() -> None:
    kept = {"lost": 0.0, "answered_twice": 0.0}
    assert all(promises({}, {"carpool": kept, "langgraph": {**kept, "lost": 1.0}}).values())
    for count in kept:
        assert list(promises({}, {"carpool": {**kept, count: 1.0}}).values()) == [False]
