"""The dialects of OpenAI's API that the LLM stand-in speaks: what each server refuses or ignores.

`vllm`: as vLLM 0.32. `openai`: as OpenAI's reasoning models. `llama.cpp`, `ollama`: as their
servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

Dialect: TypeAlias = Literal["vllm", "openai", "llama.cpp", "ollama"]
GRAMMAR_LENGTH_MAX = 2_000
"""llama.cpp makes a grammar of a schema, and refuses repetitions from this number on."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The used fields of a request for a completion. `prompt`: of /v1/completions, in `messages`'
    place.
    """

    model: str
    messages: list[dict[str, Any]] = []
    prompt: list[int] | str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    priority: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DialectRefusal:
    """A refusal in the server's words."""

    status: int
    message: str


def refusal(dialect: Dialect, request: ChatRequest) -> DialectRefusal | None:
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
    return None if message is None else DialectRefusal(status=400, message=message)


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


def tokens_max(dialect: Dialect, request: ChatRequest) -> int | None:
    """Returns the bound of the answer in tokens; None: there is none."""
    if dialect == "ollama":  # knows no other name
        return request.max_tokens
    return request.max_tokens if request.max_tokens is not None else request.max_completion_tokens


def _longest(schema: Any) -> int:
    """Returns the largest `maxLength` in a JSON Schema, or 0."""
    if isinstance(schema, Mapping):
        own = schema.get("maxLength")
        return max([own if isinstance(own, int) else 0, *map(_longest, schema.values())])
    return max(map(_longest, schema), default=0) if isinstance(schema, list) else 0
