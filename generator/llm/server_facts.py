"""What an LLM server takes: found out at its check, and learned from what it refuses.

OpenAI's API has dialects: vLLM takes token ids, OpenAI's newer models refuse `max_tokens`, and
llama.cpp cannot make a grammar of a long `maxLength`. Nothing here costs a prompt: a request that a
server refuses is sent again in the form that its message asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from generator.llm.protocol import LlmRequest
from generator.settings import LlmSettings

JsonForm = Literal["json_schema", "json_schema_unbounded", "json_object", "json_by_prompt"]
"""How a server is told that an answer is JSON, from the strictest to nothing.

`json_schema_unbounded`: without the lengths of texts and lists, which strict modes do not know.
`json_by_prompt`: the prompt alone says it.
"""
JSON_FORMS: tuple[JsonForm, ...] = get_args(JsonForm)
SCHEMA_NAME = "cited_answer"
_OF_FORM = ("response_format", "json_schema", "json_object", "schema", "grammar", "structured")
_OF_BOUNDS = ("maxlength", "maxitems", "minitems", "grammar")
_BOUNDS = frozenset({"maxLength", "minLength", "maxItems", "minItems"})
_OPTIONAL = ("temperature", "seed", "stream_options")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """What a server takes. `vllm_version` None: it is not vLLM.

    `takes_ids`: prompts of token ids. `left_out`: the names of fields that the server refuses.
    """

    vllm_version: str | None = None
    takes_ids: bool = False
    json_form: JsonForm = "json_schema"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    left_out: frozenset[str] = frozenset()


def after_refusal(facts: ServerFacts, message: str, *, has_answered: bool) -> ServerFacts | None:
    """Returns the facts after a refusal with this message; None if it says nothing about them.

    A server that `has_answered` in this form refuses the prompt, not the form. Only the lengths in
    a schema depend on the prompt. Each refusal takes something away, so there are few in a row.
    """
    words = message.lower()
    if facts.json_form == "json_schema" and any(word in words for word in _OF_BOUNDS):
        return replace(facts, json_form="json_schema_unbounded")
    if has_answered:
        return None
    if "max_completion_tokens" in words and facts.max_tokens_field == "max_tokens":
        return replace(facts, max_tokens_field="max_completion_tokens")
    if facts.json_form != "json_by_prompt" and any(word in words for word in _OF_FORM):
        return replace(facts, json_form=JSON_FORMS[JSON_FORMS.index(facts.json_form) + 1])
    for name in _OPTIONAL:
        if name in words and name not in facts.left_out:
            return replace(facts, left_out=facts.left_out | {name})
    return None


def request_body(
    request: LlmRequest, facts: ServerFacts, ids: tuple[int, ...], settings: LlmSettings
) -> dict[str, Any]:
    """Returns the fields of a request for an answer. `ids`: of the prompt; empty: its text."""
    is_vllm = facts.vllm_version is not None
    messages = [
        {"role": "system", "content": request.system},
        {"role": "user", "content": request.user},
    ]
    body: dict[str, Any] = {
        "model": settings.model,
        **({"prompt": list(ids)} if ids else {"messages": messages}),
        "max_tokens" if ids else facts.max_tokens_field: request.max_tokens,
        "temperature": request.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        "extra_headers": {"X-Request-Id": request.id},
    }
    if is_vllm:  # the counts of an answer that is ended early
        body["stream_options"]["continuous_usage_stats"] = True
    if request.seed is not None:
        body["seed"] = request.seed
    extra: dict[str, Any] = {}
    if request.schema is not None and facts.json_form != "json_by_prompt":
        extra["response_format"] = _response_format(facts.json_form, request.schema)
    if is_vllm and request.regex is not None:
        extra["structured_outputs"] = {"regex": request.regex}
    if settings.sends_priority:
        extra["priority"] = request.priority
    body["extra_body"] = extra | settings.extra_body
    return {name: value for name, value in body.items() if name not in facts.left_out}


def _response_format(form: JsonForm, schema: Mapping[str, Any]) -> dict[str, Any]:
    if form == "json_object":
        return {"type": "json_object"}
    of_form = dict(schema) if form == "json_schema" else _unbounded(schema)
    return {
        "type": "json_schema",
        "json_schema": {"name": SCHEMA_NAME, "schema": of_form, "strict": True},
    }


def _unbounded(schema: Any) -> Any:
    """Returns a JSON Schema without the lengths of texts and lists."""
    if isinstance(schema, Mapping):
        return {name: _unbounded(part) for name, part in schema.items() if name not in _BOUNDS}
    return [_unbounded(part) for part in schema] if isinstance(schema, list | tuple) else schema
