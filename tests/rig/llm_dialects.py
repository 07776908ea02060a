"""The LLM stand-in as other servers than vLLM: what each refuses of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from carpool.testing.http import HttpRequest, RefusedRequest, Responder
from carpool.testing.llm_api import ChatRequest
from carpool.testing.llm_server import LlmServer
from carpool.testing.llm_tokens import encode

Dialect: TypeAlias = Literal["vllm", "openai", "llama.cpp", "ollama"]
GRAMMAR_LENGTH_MAX = 2_000
"""llama.cpp makes a grammar of a schema, and refuses repetitions from this number on."""


class DialectServer(LlmServer):
    """`openai`: as OpenAI's reasoning models. `llama.cpp`, `ollama`: as their servers."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self._dialect = dialect

    async def answer_more(self, request: HttpRequest, responder: Responder) -> None:
        if self._dialect == "vllm":
            await super().answer_more(request, responder)
        elif self._dialect == "llama.cpp" and request.path == "/tokenize":
            content = msgspec.json.decode(request.body).get("content", "")
            await responder.json({"tokens": encode(content)})
        else:
            raise RefusedRequest(404, f"no {request.path}")

    def check(self, chat: ChatRequest) -> None:
        if message := refusal(self._dialect, chat):
            raise RefusedRequest(400, message)


def refusal(dialect: Dialect, request: ChatRequest) -> str | None:
    """Returns why a server of this dialect refuses the request; None: it takes it."""
    form = request.response_format or {}
    schema = form.get("json_schema", {}).get("schema", {})
    match dialect:
        case "openai":
            message = _openai_refusal(request, form, schema)
        case "llama.cpp" if _longest(schema) >= GRAMMAR_LENGTH_MAX:
            message = "Failed to initialize samplers: failed to parse grammar"
        case "ollama" if isinstance(request.prompt, list):
            message = (
                "json: cannot unmarshal array into Go struct field CompletionRequest.prompt of "
                "type string"
            )
        case _:
            message = None
    return message


def _openai_refusal(
    request: ChatRequest, form: Mapping[str, Any], schema: Mapping[str, Any]
) -> str | None:
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
    if form.get("json_schema", {}).get("strict") and _longest(schema):
        return (
            "Invalid schema for response_format 'cited_answer': In context=('properties', "
            "'answer'), 'maxLength' is not permitted."
        )
    text = " ".join(str(message.get("content")) for message in request.messages)
    if form.get("type") == "json_object" and "json" not in text.lower():
        return (
            "'messages' must contain the word 'json' in some form, to use 'response_format' of "
            "type 'json_object'."
        )
    return None


def _longest(schema: Any) -> int:
    """Returns the largest `maxLength` in a JSON Schema, or 0."""
    if isinstance(schema, Mapping):
        own = schema.get("maxLength")
        return max([own if isinstance(own, int) else 0, *map(_longest, schema.values())])
    return max(map(_longest, schema), default=0) if isinstance(schema, list) else 0
