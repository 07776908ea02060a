"""What an LLM server takes: found out at its check, and learned from what it refuses.

OpenAI's API has dialects: vLLM takes token ids, OpenAI's newer models refuse `max_tokens`, and
llama.cpp cannot make a grammar of a long `maxLength`. Nothing here costs a prompt: a request that a
server refuses is sent again in the form that its message asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

JsonForm = Literal["json_schema", "json_schema_unbounded", "json_object", "json_by_prompt"]
"""How a server is told that an answer is JSON, from the strictest to nothing.

`json_schema_unbounded`: without the lengths of texts and lists, which strict modes do not know.
`json_by_prompt`: the prompt alone says it.
"""
JSON_FORMS: tuple[JsonForm, ...] = get_args(JsonForm)
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


def response_format(form: JsonForm, name: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the field `response_format` of a request; None: it is left out."""
    if form == "json_by_prompt":
        return None
    if form == "json_object":
        return {"type": "json_object"}
    of_form = dict(schema) if form == "json_schema" else _unbounded(schema)
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "schema": of_form, "strict": True},
    }


def _unbounded(schema: Any) -> Any:
    """Returns a JSON Schema without the lengths of texts and lists."""
    if isinstance(schema, Mapping):
        return {name: _unbounded(part) for name, part in schema.items() if name not in _BOUNDS}
    return [_unbounded(part) for part in schema] if isinstance(schema, list | tuple) else schema
