"""One conformance suite over all engines, then what is of the real client alone, against the
stand-in's faults.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from carpool.settings import Secret
from carpool.testing.llm_server import LlmFault, LlmServer
from carpool.testing.llm_text import NAME
from carpool.testing.llm_tokens import encode, render
from generator.llm import server_events
from generator.llm.openai_api import OpenAiLlm
from generator.llm.openai_errors import retry_after
from generator.llm.protocol import (
    LlmEngine,
    LlmFinished,
    LlmPiece,
    LlmRefusal,
    LlmRequest,
    PromptRefused,
)
from generator.llm.server_events import ServerEvents
from generator.llm.server_facts import ServerFacts, request_body
from generator.settings import LlmSettings
from tests.generator.memory_llm import MemoryLlm
from tests.generator.test_llm_dialects import answering
from tests.waiting import WAIT_S, wait_until

REQUEST = LlmRequest(
    id="rag.queries.v1/0/7",
    system="Answer.",
    user="[1] A: a\n\n[2] B: b\n\nQuestion: why?",
    max_tokens=100,
)
NOTHING = LlmFinished(
    finish_reason="stop", model="", input_tokens=0, output_tokens=0, cached_tokens=0
)


@contextmanager
def openai_engine() -> Iterator[LlmEngine]:
    with LlmServer() as server:
        yield OpenAiLlm(settings(server))


@contextmanager
def memory_engine() -> Iterator[LlmEngine]:
    yield MemoryLlm()


@pytest.fixture(params=[openai_engine, memory_engine])
def engine(request: pytest.FixtureRequest) -> Iterator[LlmEngine]:
    with request.param() as made:
        yield made


def settings(server: LlmServer, **more: Any) -> LlmSettings:
    return LlmSettings(**{"base_url": server.url, "model": server.model, **more})


async def collect(engine: LlmEngine, request: LlmRequest = REQUEST) -> tuple[str, LlmFinished]:
    events = [event async for event in engine.stream(request)]
    *pieces, finished = events
    assert isinstance(finished, LlmFinished)
    assert all(isinstance(piece, LlmPiece) and piece.text for piece in pieces)
    return "".join(piece.text for piece in pieces if isinstance(piece, LlmPiece)), finished


def run(engine: LlmEngine, use: Callable[[LlmEngine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        try:
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


# ---- every engine


def test_pieces_come_then_one_end_and_together_they_are_a_cited_answer(engine: LlmEngine) -> None:
    text, finished = run(engine, collect)
    assert "[1]" in text or "[2]" in text
    assert finished.finish_reason == "stop"
    assert finished.model
    assert min(finished.input_tokens, finished.output_tokens, finished.cached_tokens) >= 0


def test_a_prefix_is_known_and_warmed_where_prompts_are_ids(engine: LlmEngine) -> None:
    prompt = replace(REQUEST, segments=("", "[1] A: a\n\n", "[2] B: b\n\n", "Question: why?"))

    async def warm(engine: LlmEngine) -> tuple[tuple[int, ...], tuple[int, ...], LlmFinished]:
        begin, ids = await engine.prefix(prompt, 1), await engine.tokenize(prompt)
        request = replace(prompt, token_ids=begin, max_tokens=1)
        return begin, ids, (await collect(engine, request))[1] if begin else NOTHING

    begin, ids, finished = run(engine, warm)
    assert ids[: len(begin)] == begin
    assert bool(ids) == bool(begin) == (len(begin) < len(ids))
    assert finished.input_tokens == len(begin) and finished.output_tokens <= 1


def test_a_request_can_be_left_after_its_first_piece(
    engine: LlmEngine,
) -> None:
    async def leave_and_ask(engine: LlmEngine) -> str:
        async with aclosing(engine.stream(REQUEST)) as events:
            assert isinstance(await anext(events), LlmPiece)
        return (await collect(engine))[0]

    assert run(engine, leave_and_ask)


# ---- the real client


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as server:
        yield server


def refusal_of(server: LlmServer, request: LlmRequest = REQUEST, **more: Any) -> LlmRefusal:
    with pytest.raises(LlmRefusal) as error:
        run(OpenAiLlm(settings(server, **more)), lambda engine: collect(engine, request))
    return error.value


def test_a_request_has_its_id_and_usage_is_as_the_server_counted_it(server: LlmServer) -> None:
    text, finished = run(OpenAiLlm(settings(server)), collect)
    assert NAME in text
    assert finished.model == server.model
    messages = ({"role": "system", "content": "Answer."}, {"content": REQUEST.user})
    assert finished.input_tokens == len(encode(render(messages)))
    assert finished.output_tokens > 3
    assert server.requests.completed_by_id == {REQUEST.id: 1}


def test_a_canary_is_one_token(server: LlmServer) -> None:
    async def use(engine: LlmEngine) -> None:
        await collect(engine)
        await engine.canary()
        assert server.last is not None and server.last.path == "/v1/completions"
        assert json.loads(server.last.body)["max_tokens"] == 1
        server.fault = LlmFault(mode="400", count=1)
        await engine.canary()  # for its content

    run(OpenAiLlm(settings(server)), use)


def test_a_canary_is_no_answer_to_a_prompt_so_the_next_refusal_may_be_one_of_the_form(
    server: LlmServer,
) -> None:
    async def use(engine: LlmEngine) -> None:
        await engine.canary()
        server.fault = LlmFault(mode="400", count=2)
        with pytest.raises(LlmRefusal, match="has answered none so far"):
            await collect(engine)
        server.fault = LlmFault(mode="400", count=2)
        with pytest.raises(LlmRefusal, match="has answered none so far"):
            await engine.canary()

    run(OpenAiLlm(settings(server)), use)


def test_a_busy_server_says_when_to_come_back(server: LlmServer) -> None:
    server.fault = LlmFault(mode="429", retry_after_s=2.5)
    refusal = refusal_of(server)
    assert (refusal.kind, refusal.retry_after_s, refusal.refused_as) == ("busy", 2.5, "later")
    assert server.requests.started == 1, "the planner decides about retries"


@pytest.mark.parametrize(("mode", "after_tokens"), [("500", 0), ("reset", 2), ("garbage", 2)])
def test_a_server_that_fails_is_broken_and_the_request_a_try(
    server: LlmServer, mode: Any, after_tokens: int
) -> None:
    server.fault = LlmFault(mode=mode, after_tokens=after_tokens)
    refusal = refusal_of(server)
    assert (refusal.kind, refusal.retry_after_s, refusal.refused_as) == ("broken", None, "failed")


@pytest.mark.parametrize(
    ("after_tokens", "more"),
    [(0, {"first_token_timeout_s": 1.0}), (2, {"next_token_timeout_s": 0.1})],
)
def test_silence_before_or_between_tokens_is_a_timeout_and_ends_the_request(
    server: LlmServer, after_tokens: int, more: dict[str, float]
) -> None:
    async def ask(engine: LlmEngine) -> None:
        await engine.check()  # takes time too
        await collect(engine)

    server.fault = LlmFault(mode="hang", after_tokens=after_tokens)
    with pytest.raises(LlmRefusal) as error:
        run(OpenAiLlm(settings(server, **more)), ask)
    assert (error.value.kind, error.value.refused_as) == ("timeout", "failed")
    wait_until(lambda: (server.requests.in_flight, server.requests.disconnected) == (0, 1))


def test_a_slow_answer_is_no_timeout_as_long_as_text_comes() -> None:
    with LlmServer(latency_ms=0, tokens_per_second=10) as server:
        started_s = time.monotonic()
        engine = OpenAiLlm(settings(server, next_token_timeout_s=0.7))
        assert run(engine, collect)[1].finish_reason == "stop"
        assert time.monotonic() - started_s > 0.7


def test_cancelling_a_task_ends_the_request_at_the_server(server: LlmServer) -> None:
    server.fault = LlmFault(mode="hang", after_tokens=1)

    async def cancel(engine: LlmEngine) -> None:
        task = asyncio.create_task(collect(engine))
        await asyncio.to_thread(wait_until, lambda: server.requests.in_flight == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(OpenAiLlm(settings(server)), cancel)
    wait_until(lambda: server.requests.in_flight == 0)
    assert server.requests.disconnected == 1


def test_a_port_without_a_server_is_unreachable() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}/v1"
        for use in (collect, lambda engine: engine.check()):
            with pytest.raises(LlmRefusal, match="is it running") as error:
                run(OpenAiLlm(LlmSettings(base_url=url)), use)
            assert (error.value.kind, error.value.refused_as) == ("unreachable", "later")


def test_a_request_for_another_model_is_a_try(server: LlmServer) -> None:
    refusal = refusal_of(server, model="other")
    assert (refusal.kind, refusal.refused_as) == ("model_missing", "failed")


def test_the_first_refused_prompt_blames_the_settings_and_one_after_an_answer_the_prompt(
    server: LlmServer,
) -> None:
    async def use(engine: LlmEngine) -> None:
        server.fault = LlmFault(mode="400", count=1)
        with pytest.raises(LlmRefusal, match="has answered none so far") as first:
            await collect(engine)
        assert (first.value.kind, first.value.refused_as) == ("misfit", "failed")
        await collect(engine)
        server.fault = LlmFault(mode="400", count=1)
        with pytest.raises(PromptRefused, match=f"HTTP 400: {NAME} is set to refuse"):
            await collect(engine)

    run(OpenAiLlm(settings(server)), use)


JSON = "Content-Type: application/json"
EVENTS = "200 OK\r\nContent-Type: text/event-stream"
HTML = "200 OK\r\nContent-Type: text/html; charset=utf-8"
END = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
SAID = 'data: {"model":"m","choices":[{"delta":{"content":"ab"}}]}\n\n'
TOO_LONG = '{"error": {"message": "This model\'s maximum context length is 4096 tokens."}}'


@pytest.mark.parametrize(
    ("head", "body", "kind", "said"),
    [
        (f"401 No\r\n{JSON}", '{"error": {"message": "bad key"}}', "forbidden", "bad key"),
        (f"403 No\r\n{JSON}", "{}", "forbidden", "CARPOOL_LLM_API_KEY"),
        (f"404 No\r\n{JSON}", '{"error": {"message": "gone"}}', "model_missing", "gone"),
        ("408 No", "", "timeout", "gave up"),
        ("409 No", "", "misfit", "for now"),
        ("502 No\r\nContent-Type: text/html", "<html>", "gateway", "a proxy"),
        ("599 No", "", "broken", "it failed"),
        ("418 No", "", "misfit", "has answered none"),
        (f"400 No\r\n{JSON}", TOO_LONG, "prompt", "maximum context length"),
        (
            "307 Go\r\nLocation: http://me:secret@other/v1",
            "",
            "misfit",
            r"base_url answers with a redirect to http://me:\*+@other/v1",
        ),
        (
            HTML,
            "<html>hello</html>",
            "misfit",
            r"it answers text/html: is base_url right\?",
        ),
        (f"200 OK\r\n{JSON}", '{"choices": []}', "broken", "finish_reason"),
        (EVENTS, "data: [DONE]\n\n", "broken", "finish_reason"),
        (EVENTS, 'data: {"a": 1}\n\ndata: 3\n\n', "broken", "finish_reason"),
        (EVENTS, 'data: {"error":{"code":400,"message":"no \\ud83d"}}\n\n', "prompt", "no \ufffd"),
        (
            EVENTS,
            SAID + 'data: {"error":{"type":"invalid_request_error"}}\n\n',
            "prompt",
            "HTTP 400",
        ),
        (EVENTS, 'data: {"error":{"code":"429"}}\n\n', "busy", "no more work now"),
        (
            EVENTS,
            'data: {"object":"error","message":"no","type":"BadRequestError","code":400}\n\n',
            "prompt",
            "HTTP 400: no",
        ),
        (
            f"200 OK\r\n{JSON}",
            '{"error_code":"REQUEST_LIMIT_EXCEEDED","message":"later"}',
            "busy",
            r"no more work now \(HTTP 429: later",
        ),
        (
            EVENTS,
            'error: {"code":500,"message":"slot failed","type":"server_error"}\n\n',
            "broken",
            "HTTP 500: slot failed",
        ),
        (EVENTS, 'data: {"error":"engine died"}\n\n', "broken", "HTTP 500: engine died"),
        (EVENTS, "data: " + "[" * 100_000 + "\n\n", "broken", "nested too deeply"),
    ],
)
def test_what_is_no_answer_is_said_as_what_it_is(
    head: str, body: str, kind: str, said: str
) -> None:
    with (
        answering(head, body) as of_server,
        pytest.raises((LlmRefusal, PromptRefused), match=said) as error,
    ):
        run(OpenAiLlm(of_server), collect)
    assert getattr(error.value, "kind", "prompt") == kind


def test_a_key_in_the_settings_is_never_printed() -> None:
    with answering(f"401 No\r\n{JSON}", "{}") as of_server:
        keyed = LlmSettings(base_url=of_server.base_url, model="m", api_key=Secret("sk-1"))
        with pytest.raises(LlmRefusal) as error:
            run(OpenAiLlm(keyed), collect)
    assert "sk-1" not in str(error.value) + repr(keyed)


def used(usage: str) -> str:
    return f'{SAID}{END}data: {{"choices":[],"usage":{usage}}}\n\ndata: [DONE]\n\n'


NONE = (0, 0, 0, False)
DETAILS = '{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}'
MESSAGE = '"message":{"content":"ab"},"finish_reason":"stop"'


@pytest.mark.parametrize(
    ("body", "text", "counts"),
    [
        (SAID + END, "ab", NONE),
        (used(DETAILS), "ab", (9, 2, 4, True)),
        (used('{"prompt_tokens":null,"completion_tokens":2}'), "ab", (0, 2, 0, False)),
        (used('{"prompt_tokens":-5,"completion_tokens":1e3}'), "ab", NONE),
        (used(f'{{"prompt_tokens":1{"0" * 22}}}'), "ab", NONE),
        (used(f'{{"prompt_tokens":1{"0" * 5000}}}'), "ab", NONE),
        (used('{"prompt_tokens":"9","prompt_tokens_details":3}'), "ab", NONE),
        (used(DETAILS.replace("4", "true")), "ab", (9, 2, 0, False)),
        (used("[]"), "ab", NONE),
        (SAID.replace('"m"', '"\\ud83d"') + END, "ab", NONE),
        (SAID.replace("ab", "a\\ud83d") + END, "a\ufffd", NONE),
        (SAID + END.replace("stop", "st\\udc00"), "ab", NONE),
        (SAID.replace("ab", "a\\ud83d") + "data: [DONE]\n\n", "a\ufffd", NONE),
        (SAID.replace("ab", "\\ud83d") + SAID + END, "\ufffdab", NONE),
        (SAID.replace('"ab"', '[{"text":"\\ud83d"},{"text":"\\ude80"}]') + END, "🚀", NONE),
        (f'{{"choices":[{{{MESSAGE}}}]}}'.replace("ab", "a\\ud83d"), "a\ufffd", NONE),
        ('data: {"choices":[{"filter":{}}]}\n\n' + SAID + END, "ab", NONE),
        ('data: {"choices":null}\n\ndata: 3\n\n' + SAID + END, "ab", NONE),
        ("id: 1\n: hello\n\nretry: 9\n\n" + SAID + END, "ab", NONE),
        ((SAID + END).replace("\n", "\r\n"), "ab", NONE),
        (SAID.replace(',"cho', ',\ndata: "cho') + END, "ab", NONE),
        (SAID + "data: [DONE]\n\n", "ab", NONE),
        (SAID + END + "data: {oops\n\n", "ab", NONE),
        (SAID + END + 'data: {"error":"no usage"}\n\n', "ab", NONE),
        ((SAID + END).replace("ab", "a\udcff"), "a\ufffd", NONE),
        (f'{{"choices":[{{{MESSAGE}}}],"usage":{{"prompt_tokens":7}}}}', "ab", (7, 0, 0, False)),
        (SAID.replace('"ab"', '[{"type":"text","text":"ab"},{"type":"x"}]') + END, "ab", NONE),
    ],
)
def test_odd_forms_of_an_answer_are_read_and_odd_values_replaced(
    body: str, text: str, counts: tuple[int, int, int, bool]
) -> None:
    events = ServerEvents("m")
    assert events.feed(body.encode(errors="surrogateescape"), is_last=True) == text
    assert events.has_ended
    end = events.finished()
    assert (end.input_tokens, end.output_tokens, end.cached_tokens, end.counts_cached) == counts
    assert (end.model + end.finish_reason).encode()


def test_two_halves_of_an_emoji_in_two_pieces_are_one_emoji() -> None:
    events = ServerEvents("m")
    pieces = [SAID.replace("ab", half).encode() for half in ("a\\ud83d", "\\ude80b")]
    assert [events.feed(piece) for piece in (*pieces, END.encode())] == ["a", "🚀b", ""]


@pytest.mark.parametrize("begin", [b"data: ", b"data: {\ndata: ", b'{"choices":', b"data:\n"])
def test_an_event_or_a_body_has_a_largest_size(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_events, "EVENT_CHARS_MAX", 6_000)
    events = ServerEvents("m")
    with pytest.raises(ValueError, match="more than 6000 characters"):
        for _ in range(11):
            events.feed(begin + (b"data:\n" * 100 if begin.endswith(b"\n") else b"x" * 600))


@pytest.mark.parametrize(("before", "is_paid"), [("", False), (SAID, True)])
def test_a_server_that_is_busy_is_paid_for_the_text_that_it_wrote(
    before: str, is_paid: bool
) -> None:
    body = before + 'data: {"error":{"code":429}}\n\n'
    with answering(EVENTS, body) as of_server, pytest.raises(LlmRefusal) as error:
        run(OpenAiLlm(of_server), collect)
    assert (error.value.kind, error.value.is_paid) == ("busy", is_paid)


def test_a_list_of_models_that_is_refused_is_no_prompt_that_is_refused() -> None:
    async def use(engine: LlmEngine) -> None:
        engine._has_answered = True  # type: ignore[attr-defined]
        with pytest.raises(LlmRefusal, match="400"):
            await engine.check()

    with answering(f"400 No\r\n{JSON}", "{}") as of_server:
        run(OpenAiLlm(of_server), use)


@pytest.mark.parametrize(
    ("head", "more", "max_tokens", "kind"),
    [
        (f"{EVENTS}\r\n\r\n", '"choices":[]', 100, "timeout"),
        (f"{EVENTS}\r\n\r\n{SAID}", '"choices":[{"delta":{"content":""}}]', 100, "timeout"),
        (f"{EVENTS}\r\n\r\n{SAID}", '"choices":[{"delta":{"content":"a"}}]', 0, "timeout"),
        (f"{HTML}\r\n\r\n", "", 100, "misfit"),
    ],
)
def test_only_text_moves_the_deadline_and_it_has_an_end(
    head: str, more: str, max_tokens: int, kind: str
) -> None:
    """The connection of a reply without end is closed, and that of a web page at once."""

    async def forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left.clear()
        await reader.read(100_000)
        writer.write(f"HTTP/1.1 {head}".encode())
        try:
            while True:
                writer.write(f"data: {{{more}}}\n\n".encode())
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass
        finally:
            writer.close()
            left.set()

    async def ask() -> None:
        async with await asyncio.start_server(forever, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            engine = OpenAiLlm(
                LlmSettings(base_url=url, first_token_timeout_s=0.5, next_token_timeout_s=0.3)
            )
            engine._facts = ServerFacts()
            try:
                with pytest.raises(LlmRefusal) as error:
                    request = replace(REQUEST, max_tokens=max_tokens)
                    await asyncio.wait_for(collect(engine, request), WAIT_S)
                await asyncio.wait_for(left.wait(), WAIT_S)
            finally:
                await engine.close()
            assert error.value.kind == kind

    left = asyncio.Event()
    left.set()
    asyncio.run(ask())


def test_priority_and_seed_are_sent_if_requested() -> None:
    plain = request_body(REQUEST, ServerFacts(), (), LlmSettings())
    assert plain.keys().isdisjoint(("seed", "priority"))
    wished = replace(REQUEST, seed=3, priority=-4)
    body = request_body(wished, ServerFacts(), (), LlmSettings(sends_priority=True))
    assert (body["seed"], body["priority"]) == (3, -4)


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        (
            {
                "retry-after": "Sat, 21 Nov 2026 10:00:30 GMT",
                "date": "Sat, 21 Nov 2026 10:00:00 GMT",
            },
            30.0,
        ),
        ({"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT"}, None),
        ({"retry-after": "soon", "date": "now"}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(
    headers: dict[str, str], expected_s: float | None
) -> None:
    assert retry_after(headers) == expected_s
