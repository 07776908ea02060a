"""What a server says about its load, and how the stage finds out how many requests it takes."""

from __future__ import annotations

import asyncio

from carpool.testing.llm_server import LlmServer
from generator.found_concurrency import FoundConcurrency
from generator.llm.memory import MemoryLlm, Reply
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmRefusal
from generator.llm.server_load import ServerLoadReader, parse_load
from generator.plan.concurrency import (
    ConcurrencyBounds,
    ConcurrencyController,
    LoadSample,
    ServerLoad,
)
from generator.settings import GeneratorSettings, LlmSettings
from tests.generator.stage import running, unit
from tests.rig.llm_dialects import DialectServer

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {strange} name"} 7.0
vllm:num_requests_running{engine="1",model_name="a {strange} name"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a {strange} name"} 3.0 1700000000000
vllm:num_requests_waiting{engine="1",model_name="a {strange} name"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 100.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:num_preemptions_total{engine="0"} 4.0
vllm:num_preemptions_total{engine="1"} 2.0
vllm:num_preemptions_created{engine="0"} 1.7e+09
python_info{implementation="CPython"} 1.0
"""
HANG = Reply(hangs_after=1)


def test_the_load_is_read_of_all_engines() -> None:
    assert parse_load(PAGE) == ServerLoad(running=9, waiting=4, kv_used=0.5, preemptions=6)


def test_the_earlier_name_of_the_memory_is_known_and_a_page_without_labels() -> None:
    page = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
    assert parse_load(page) == ServerLoad(running=1, waiting=0, kv_used=0.0, preemptions=0)
    earlier = page + "vllm:gpu_cache_usage_perc 0.75\n"
    assert parse_load(earlier) == ServerLoad(running=1, waiting=0, kv_used=0.75, preemptions=0)


def test_what_is_no_load_is_none() -> None:
    for page in (
        "",
        "<html>not found</html>",
        "vllm:num_requests_running 1\n",
        "vllm:num_requests_running\nvllm:num_requests_waiting NaN\n",
        "vllm:num_requests_running{ 1\nvllm:num_requests_waiting -1\n",
    ):
        assert parse_load(page) is None


def _load_of(settings: LlmSettings) -> ServerLoad | None:
    async def read() -> ServerLoad | None:
        engine = OpenAiLlm(settings)
        await engine.check()
        load = await engine.load()
        await engine.close()
        return load

    return asyncio.run(read())


def test_a_vllm_is_asked_for_its_load_and_another_server_is_not() -> None:
    with LlmServer() as server:
        settings = LlmSettings(base_url=server.url, model=server.model)
        assert _load_of(settings) == ServerLoad(running=0, waiting=0, kv_used=0.0, preemptions=0)
    with DialectServer("openai") as server:
        assert _load_of(LlmSettings(base_url=server.url, model=server.model)) is None


def test_a_server_that_does_not_say_its_load_is_no_failure() -> None:
    async def read(url: str) -> ServerLoad | None:
        reader = ServerLoadReader(url, {})
        try:
            return await reader.read()
        finally:
            await reader.close()

    with DialectServer("openai") as server:
        assert asyncio.run(read(f"http://127.0.0.1:{server.port}/metrics")) is None
    assert asyncio.run(read("http://127.0.0.1:9/metrics")) is None
    assert asyncio.run(read("no url")) is None


class SeenController(ConcurrencyController):
    """Keeps the samples that it is given."""

    def __init__(self, bounds: ConcurrencyBounds) -> None:
        super().__init__(bounds)
        self.seen: list[LoadSample] = []

    def step(self, sample: LoadSample, now_us: int) -> int:
        self.seen.append(sample)
        return super().step(sample, now_us)


def test_a_sample_holds_what_was_seen_since_the_last_one() -> None:
    async def samples() -> list[LoadSample]:
        controller = SeenController(ConcurrencyBounds(first=8, limit_max=64, ttft_us_max=1_000_000))
        limits: list[int] = []
        found = FoundConcurrency(
            MemoryLlm(), controller, in_flight=lambda: 8, on_limit=limits.append
        )
        for id in range(3):
            found.sent(id)
        found.first_token(0, 200_000)
        found.written()
        found.written()
        found.ended(0, is_answered=True)
        found.ended(1, is_answered=False)
        await found.sample()
        found.refused("busy")
        await found.sample()
        assert limits == [5]
        return controller.seen

    first, second = asyncio.run(samples())
    assert first == LoadSample(
        in_flight=8, pending=1, output_tokens=2, answers=1, ttfts_us=(200_000,)
    )
    assert second == LoadSample(in_flight=8, pending=1, output_tokens=0, answers=0, is_busy=True)


def test_a_fixed_number_stays_and_is_said() -> None:
    with running(MemoryLlm(), GeneratorSettings(concurrency=3)) as run:
        assert run.metric("llm_concurrency", server="memory") == 3
    with running(MemoryLlm(), GeneratorSettings(concurrency=0, intake_records_max=5)) as run:
        assert run.metric("llm_concurrency", server="memory") == 5


def test_a_server_that_is_busy_gets_fewer_requests() -> None:
    busy = LlmRefusal("busy", "too many")
    engine = MemoryLlm(script=[*[HANG] * 7, Reply(error=busy)] + [HANG] * 8)
    with running(engine, GeneratorSettings(concurrency=0)) as run:
        run.offer(*(unit() for _ in range(8)))
        run.wait(lambda: run.metric("llm_requests_total", outcome="busy") == 1)
        run.wait(lambda: run.metric("llm_concurrency", server="memory") == 5)
