"""The stage follows what its LLM server has cached: which prompt is next."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from structlog.testing import capture_logs

from generator.llm.protocol import LlmEvent, LlmFinished, LlmRequest
from generator.prompts import load_templates, prepare_prompt
from generator.settings import GeneratorSettings
from schemas.retrieval import Hit
from tests.generator.memory_llm import MemoryLlm
from tests.generator.stage import LLM, Running, running, unit
from tests.records import a_query, a_retrieval
from tests.rig.kv_events import KvPublisher

BLOCK = 8


@dataclass
class WaitingLlm(MemoryLlm):
    """Answers when `go` is set. `cached`: what it says of the cached tokens of each prompt."""

    go: threading.Event = field(default_factory=threading.Event)
    cached: int | None = None

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        while not self.go.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.001)
        async for event in super().stream(request):
            if isinstance(event, LlmFinished) and self.cached is not None:
                event = replace(event, cached_tokens=self.cached, counts_cached=True)
            yield event

    def questions(self) -> list[str]:
        """The questions in the order in which they were sent."""
        lines = (line for request in self.requests for line in request.user.splitlines())
        return [line.removeprefix("Question: ") for line in lines if line.startswith("Question:")]


def passage(name: str, score: float = 0.9) -> Hit:
    text = " ".join(f"{name}-{word}" for word in range(20))
    return Hit(doc_id=name, score=score, cluster=0, title=f"Title {name}", text=text)


def ids_of(question: str, *found: Hit) -> tuple[int, ...]:
    """The ids of a prompt with these passages, in this order."""
    settings = GeneratorSettings()
    retrieval = a_retrieval(a_query(text=question), found)
    request = prepare_prompt(retrieval, settings, load_templates(settings)).request
    return asyncio.run(MemoryLlm().tokenize(request))


@contextmanager
def following(engine: WaitingLlm, publisher: KvPublisher) -> Iterator[Running]:
    settings = GeneratorSettings(concurrency=1, reuse=False)
    llm = msgspec.structs.replace(LLM, kv_events=publisher.endpoint)
    with running(engine, settings, llm) as run:
        run.wait(publisher.has_subscriber)
        yield run


def tell(
    run: Running, publisher: KvPublisher, ids: tuple[int, ...], server: str = "memory"
) -> None:
    """The server says that it has cached this prompt, and is heard."""
    before = run.metric("kv_cache_blocks", server=server)
    publisher.publish(publisher.store(ids))
    run.wait(lambda: run.metric("kv_cache_blocks", server=server) > before)
    assert run.metric("kv_cache_known", server=server) == 1


def tokenized(run: Running) -> bool:
    """Whether the tokens of all waiting prompts are known to the dispatcher."""
    return all(queued.prompt.token_ids for queued in run.stage._prompts._dispatcher._queue)


@pytest.fixture
def publisher() -> Iterator[KvPublisher]:
    with KvPublisher(block_tokens=BLOCK) as publisher:
        yield publisher


def test_without_zeromq_one_line_says_so_and_prompts_go_in_the_order_of_arrival(
    publisher: KvPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "zmq" else find(name)
    )
    engine = WaitingLlm()
    engine.go.set()
    llm = msgspec.structs.replace(LLM, kv_events=publisher.endpoint)
    with capture_logs() as logs, running(engine, GeneratorSettings(), llm) as run:
        run.ask(unit("q0"), unit("q1"))
    assert engine.questions() == ["q0", "q1"]
    assert [entry["log_level"] for entry in logs if "pyzmq" in entry["event"]] == ["warning"]


def test_each_answer_is_compared_with_what_was_expected(publisher: KvPublisher) -> None:
    engine = WaitingLlm(cached=BLOCK)
    with following(engine, publisher) as run:
        run.offer(unit("q0"), unit("q1"))
        tell(run, publisher, (1,) * BLOCK)
        engine.go.set()
        run.wait_for_answers(2)
        counts = {
            what: lambda what=what: run.metric("kv_cache_events_total", server="memory", event=what)
            for what in ("agreed", "more", "less", "replayed", "emptied", "unreadable")
        }
        run.wait(lambda: counts["more"]() == 1)
        publisher.send_frames(b"garbage")
        run.wait(lambda: counts["unreadable"]() == 1)
        counted = {what: count() for what, count in counts.items()}
    assert counted == dict.fromkeys(counts, 0) | {"unreadable": 1, "more": 1}


# ---- several servers


@contextmanager
def following_two(
    engines: tuple[WaitingLlm, WaitingLlm], publishers: tuple[KvPublisher, KvPublisher]
) -> Iterator[Running]:
    """A stage that has sent a prompt to each server; they are answered when `go` is set."""
    settings = GeneratorSettings(concurrency=1, reuse=False)
    endpoints = ",".join(publisher.endpoint for publisher in publishers)
    llm = msgspec.structs.replace(LLM, kv_events=endpoints)
    with running(engines, settings, llm) as run:
        run.wait(lambda: all(publisher.has_subscriber() for publisher in publishers))
        run.offer(unit("q0"), unit("q1"))
        run.wait(lambda: run.metric("llm_requests_in_flight") == 2)
        yield run


def test_each_server_takes_the_prompt_of_which_it_has_most_cached(publisher: KvPublisher) -> None:
    first, second = engines = WaitingLlm(address="first"), WaitingLlm(address="second")
    with (
        KvPublisher(block_tokens=2 * BLOCK) as other,
        following_two(engines, (publisher, other)) as run,
    ):
        tell(run, publisher, ids_of("a", passage("a")), "first")
        tell(run, other, ids_of("b", passage("b")), "second")
        for topic in "bbaa":
            run.offer(unit(f"about {topic}", found=(passage(topic),)))
        run.wait(lambda: tokenized(run))
        for engine in engines:
            engine.go.set()
        run.wait_for_answers(6)
    assert first.questions()[1:2] == ["about a"]
    assert second.questions()[1:2] == ["about b"]
