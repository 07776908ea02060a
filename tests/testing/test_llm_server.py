"""The LLM server of tests answers, refuses, hangs and disconnects as its fault says."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from carpool.testing.llm_server import LlmFault, LlmServer
from carpool.testing.llm_text import NAME, prompt_hash
from tests.waiting import WAIT_S

MESSAGES = [
    {"role": "system", "content": "Answer."},
    {"role": "user", "content": "[1] A: a\n\n[2] B: b\n\n[3] C: c\n\nQuestion: why?"},
]


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as server:
        yield server


def ask(
    server: LlmServer, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
        is_json = response.headers.get_content_type() == "application/json"
        return (
            response.status,
            json.loads(content) if is_json else content.decode(),
            dict(response.headers),
        )
    finally:
        connection.close()


def chat(**more: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": MESSAGES, **more}


def complete(server: LlmServer, **more: Any) -> tuple[int, Any, dict[str, str]]:
    return ask(server, "POST", "/v1/chat/completions", chat(**more))


@pytest.mark.parametrize("mode", ["400", "429", "500", "503"])
def test_a_refusal_lasts_for_as_many_requests_as_it_was_set_to(
    server: LlmServer, mode: str
) -> None:
    fault = {"mode": mode, "count": 2, "retry_after_s": 1.5}
    assert ask(server, "POST", "/_faults", fault)[0] == 200
    answers = [complete(server) for _ in range(3)]
    assert [status for status, _, _ in answers] == [int(mode), int(mode), 200]
    assert answers[0][2]["Retry-After"] == "1.5"
    assert NAME in answers[0][1]["error"]["message"]


def test_prompts_with_a_text_fail_as_often_as_it_was_set_to(server: LlmServer) -> None:
    request = {"model": server.model, "messages": MESSAGES}
    assert ask(server, "POST", "/_broken", {"why?": 1, "how?": 5})[0] == 200
    statuses = [ask(server, "POST", "/v1/chat/completions", request)[0] for _ in range(2)]
    assert statuses == [500, 200]
    assert (server.requests.started, server.requests.faulted) == (2, 1)


def test_it_counts_generations_by_id_and_by_prompt(server: LlmServer) -> None:
    server.fault = LlmFault(mode="429", count=1)
    for _ in range(3):
        ask(server, "POST", "/v1/chat/completions", chat(), **{"X-Request-Id": "q-1"})
    other = [{"role": "user", "content": "another"}]
    ask(server, "POST", "/v1/chat/completions", {"model": NAME, "messages": other})
    counts = ask(server, "GET", "/_requests")[1]
    names = ("started", "completed", "faulted", "in_flight")
    assert [counts[name] for name in names] == [4, 3, 1, 0]
    assert counts["started_by_id"] == {"q-1": 3, prompt_hash(other): 1}
    assert counts["completed_by_id"] == {"q-1": 2, prompt_hash(other): 1}
    assert counts["started_by_prompt"] == {prompt_hash(MESSAGES): 3, prompt_hash(other): 1}
    assert counts["completed_by_prompt"] == {prompt_hash(MESSAGES): 2, prompt_hash(other): 1}
