"""The LLM stand-in as other servers than vLLM: what each refuses of OpenAI's API."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from aiohttp import web

from carpool.testing.http import RefusedRequest, json_response
from carpool.testing.llm_api import ChatRequest
from carpool.testing.llm_server import LlmServer
from carpool.testing.llm_tokens import encode

Dialect: TypeAlias = Literal["vllm", "openai", "llama.cpp", "ollama"]


class DialectServer(LlmServer):
    """`openai`: as OpenAI's reasoning models. `llama.cpp`, `ollama`: as their servers."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self._dialect = dialect

    def answer_more(self, method: str, path: str, body: bytes) -> web.Response:
        if self._dialect == "vllm":
            return super().answer_more(method, path, body)
        if self._dialect == "llama.cpp" and path == "/tokenize":
            content = msgspec.json.decode(body).get("content", "")
            return json_response({"tokens": encode(content)})
        raise RefusedRequest(404, f"no {path}")

    def check(self, chat: ChatRequest) -> None:
        if message := refusal(self._dialect, chat):
            raise RefusedRequest(400, message)


def refusal(dialect: Dialect, request: ChatRequest) -> str | None:
    """Returns why a server of this dialect refuses the request; None: it takes it."""
    match dialect:
        case "openai":
            message = _openai_refusal(request)
        case "ollama" if isinstance(request.prompt, list):
            message = (
                "json: cannot unmarshal array into Go struct field CompletionRequest.prompt of "
                "type string"
            )
        case _:
            message = None
    return message


def _openai_refusal(request: ChatRequest) -> str | None:
    if request.max_tokens is not None:
        return (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead."
        )
    if request.temperature not in (None, 1):
        return (
            f"Unsupported value: 'temperature' does not support {request.temperature:g} with this "
            "model. Only the default (1) value is supported."
        )
    if request.priority is not None:
        return "Unrecognized request argument supplied: priority"
    return None
