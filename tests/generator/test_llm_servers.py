"""The recipes of docs/guides/llm-servers.md, each against the stand-in in that server's dialect."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import structlog

from carpool.settings import Secret
from carpool.testing.llm_server import LlmServer
from carpool.testing.llm_text import NAME
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmPiece, LlmRefusal, LlmRequest
from generator.settings import LlmSettings
from tests.generator.test_llm_dialects import answering
from tests.rig.llm_dialects import Dialect, DialectServer

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "llm-servers.md"
HEADINGS: dict[str, Dialect] = {
    "vLLM": "vllm",
    "Ollama": "ollama",
    "llama.cpp": "llama.cpp",
    "OpenAI": "openai",
}
SEGMENTS = ("Passages:\n\n", "[1] A: a.\n\n", "[2] B: b\n\n", "Question: why?")
REQUEST = LlmRequest(
    id="rag.queries.v1/0/7",
    system="Answer.",
    user="".join(SEGMENTS),
    segments=SEGMENTS,
    max_tokens=100,
)


def recipe(heading: str) -> dict[str, Any]:
    """The settings of section `llm` in the recipe under `heading`."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    block = re.search(r"```toml\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert block is not None
    return tomllib.loads(block[1])["llm"]  # type: ignore[no-any-return]


def at(server: LlmServer, **settings: Any) -> OpenAiLlm:
    return OpenAiLlm(LlmSettings(**settings | {"base_url": server.url, "model": server.model}))


async def text_of(engine: OpenAiLlm, request: LlmRequest) -> str:
    events = [event async for event in engine.stream(request)]
    return "".join(event.text for event in events if isinstance(event, LlmPiece))


def asked(engine: OpenAiLlm, *requests: LlmRequest) -> list[str]:
    """Checks the server, and returns the text of each answer."""

    async def main() -> list[str]:
        try:
            await engine.check()
            return [await text_of(engine, one) for one in requests]
        finally:
            await engine.close()

    return asyncio.run(main())


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_recipe_gets_answers_from_its_server(heading: str) -> None:
    with DialectServer(HEADINGS[heading]) as server:
        (text,) = asked(at(server, **recipe(heading)), REQUEST)
        assert NAME in text
        assert server.requests.completed == 1


@pytest.mark.parametrize("dialect", HEADINGS.values())
def test_a_server_that_nothing_was_set_for_is_asked_until_it_takes_the_request(
    dialect: Dialect,
) -> None:
    with DialectServer(dialect) as server, structlog.testing.capture_logs() as logs:
        texts = asked(at(server), REQUEST, REQUEST)
        assert all(NAME in text for text in texts)
        assert server.requests.completed == 2
    refused = [entry for entry in logs if "refuses the form" in entry["event"]]
    assert len(refused) == {"openai": 2}.get(dialect, 0)
    if dialect == "openai":
        assert refused[-1]["max_tokens_field"] == "max_completion_tokens"
        assert refused[-1]["left_out"] == ["temperature"]
    (found,) = [entry for entry in logs if entry["event"].startswith("found out")]
    said = "token ids" if dialect == "vllm" else "chat text: POST /tokenize"
    assert found["prompts"].startswith(said)


@pytest.mark.parametrize("dialect", HEADINGS.values())
def test_no_server_is_told_what_an_answer_looks_like(dialect: Dialect) -> None:
    with DialectServer(dialect) as server:
        asked(at(server), REQUEST)
        assert server.last is not None
        sent = set(json.loads(server.last.body))
    prompt = "prompt" if dialect == "vllm" else "messages"
    bound = "max_completion_tokens" if dialect == "openai" else "max_tokens"
    temperature = set() if dialect == "openai" else {"temperature"}
    assert sent == {"model", prompt, bound, "stream", "stream_options"} | temperature


def test_extra_headers_and_fields_are_sent_and_headers_are_never_printed() -> None:
    headers = Secret('{"X-Team": "search", "Authorization": "Bearer t-1"}')
    settings = {"extra_headers": headers, "extra_body": {"reasoning_effort": "low"}}
    with LlmServer() as server:
        asked(at(server, **settings), REQUEST)
        assert server.last is not None
        assert server.last.headers["x-team"] == "search"
        assert server.last.headers["authorization"] == "Bearer t-1"
        assert json.loads(server.last.body)["reasoning_effort"] == "low"
    assert "t-1" not in repr(LlmSettings(extra_headers=headers))
    assert LlmSettings(extra_headers=Secret("x")).check() == [
        'extra_headers is no JSON object of texts: write {"NAME": "VALUE"}'
    ]


@pytest.mark.parametrize(
    ("head", "body", "words"),
    [
        ("200 OK\r\nContent-Type: text/html", "<html>Welcome</html>", "is it an API?"),
        ("200 OK\r\nContent-Type: application/json", "{}", "is it an API?"),
        ("404 No\r\nContent-Type: text/html", "<html>", "it lists no models"),
        ("401 No\r\nContent-Type: application/json", "{}", "set CARPOOL_LLM_API_KEY"),
        (
            "200 OK\r\nContent-Type: application/json",
            '{"object": "list", "data": [{"id": "other", "object": "model"}]}',
            "it has no model 'm', only: other; set llm.model",
        ),
    ],
)
def test_a_server_that_can_never_answer_is_refused_and_the_message_says_why(
    head: str, body: str, words: str
) -> None:
    with answering(head, body) as of_server, pytest.raises(LlmRefusal, match=re.escape(words)):
        asked(OpenAiLlm(of_server))


def test_a_vllm_whose_model_takes_no_chat_is_not_ready() -> None:
    with LlmServer(takes_chats=False) as server, pytest.raises(LlmRefusal) as error:
        asked(at(server))
    assert error.value.kind == "misfit"
    assert "start vLLM with --chat-template" in str(error.value)
