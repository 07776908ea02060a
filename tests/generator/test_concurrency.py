"""How many requests a server gets at once: the rule, what vLLM says, and one run."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from carpool.testing.llm_server import LlmServer
from generator.llm.openai_api import OpenAiLlm
from generator.llm.server_load import requests_waiting
from generator.plan.concurrency import FOUND_MAX, next_concurrency
from generator.settings import GeneratorSettings, LlmSettings
from tests.generator.stage import running, unit
from tests.rig.llm_dialects import DialectServer

PAGE = """\
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_running{engine="0",model_name="a {strange} name"} 7.0
vllm:num_requests_waiting{engine="0",model_name="a {strange} name"} 3.0 1700000000000
vllm:num_requests_waiting{engine="1",model_name="a {strange} name"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 100.0
"""


@pytest.mark.parametrize(
    ("concurrency", "in_flight", "waiting", "after"),
    [
        (8, 8, 0, 9),
        (8, 7, 0, 8),
        (8, 9, 0, 9),
        (8, 8, 1, 7),
        (8, 2, 30, 7),
        (8, 8, None, 8),
        (1, 1, 5, 1),
        (FOUND_MAX, FOUND_MAX, 0, FOUND_MAX),
    ],
)
def test_one_more_while_none_waits_and_one_fewer_while_some_do(
    concurrency: int, in_flight: int, waiting: int | None, after: int
) -> None:
    assert next_concurrency(concurrency, in_flight=in_flight, waiting=waiting) == after


@pytest.mark.parametrize(
    ("page", "waiting"),
    [
        (PAGE, 4),
        ("vllm:num_requests_waiting 2\n", 2),
        ("", None),
        ("<html>not found</html>", None),
        ("vllm:num_requests_running 1\n", None),
        ("vllm:num_requests_waiting\n", None),
        ("vllm:num_requests_waiting NaN\n", None),
        ("vllm:num_requests_waiting{ 1\n", None),
        ("vllm:num_requests_waiting -1\n", None),
    ],
)
def test_the_waiting_requests_of_all_engines_are_read(page: str, waiting: int | None) -> None:
    assert requests_waiting(page) == waiting


def waiting_at(settings: LlmSettings) -> int | None:
    async def ask() -> int | None:
        engine = OpenAiLlm(settings)
        await engine.check()
        waiting = await engine.waiting()
        await engine.close()
        return waiting

    return asyncio.run(ask())


def test_a_vllm_is_asked_and_another_server_is_not() -> None:
    with LlmServer() as server:
        assert waiting_at(LlmSettings(base_url=server.url, model=server.model)) == 0
    with DialectServer("openai") as server:
        assert waiting_at(LlmSettings(base_url=server.url, model=server.model)) is None


class Twelve(LlmServer):
    """Says that all requests beyond twelve wait."""

    def load(self) -> tuple[int, int]:
        running = min(12, self.requests.in_flight)
        return running, self.requests.in_flight - running


def test_the_number_follows_what_the_server_lets_wait() -> None:
    with Twelve(latency_ms=2_000) as server:
        llm = LlmSettings(base_url=server.url, model=server.model)
        settings = GeneratorSettings(concurrency=0)
        label = f"127.0.0.1:{server.port}"
        with (
            patch("generator.prompts_in_progress.LOOK_S", 0.1),
            running(OpenAiLlm(llm), settings, llm) as run,
        ):
            run.offer(*(unit(f"why {n}?") for n in range(40)))
            run.wait(lambda: run.metric("llm_concurrency", server=label) == 13)
            run.wait(lambda: run.metric("llm_concurrency", server=label) == 12)
