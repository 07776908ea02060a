"""Turns a request of OpenAI's into a question. Pure.

`models`: the names that a request may give; None: any, and another than `carpool` is the LLM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from producers.openai.fields import CHAT_FIELDS, NO_STATE, RESPONSE_FIELDS, BadRequest, check_fields
from schemas.query import EarlierMessage, Generation

MODEL = "carpool"
"""The model of an answer after one search; `carpool/NAME` is that of a workflow."""
STORE = "default"
"""The one vector store."""
CONDENSE = "condense"
RESULTS = "file_search_call.results"
OWN_FIELDS = ("condense", "extractive", "top_k")
"""Of `carpool` in a request."""
PASSED_OVER = ("file_search_call", "reasoning")
"""Items of an earlier response: their texts are in its message."""
TOOL_FIELDS = {"type", "vector_store_ids", "max_num_results", "filters"}
CHAT_LENGTHS = ("max_completion_tokens", "max_tokens")
TEXT_PARTS = ("input_text", "output_text", "text")


@dataclass(frozen=True, kw_only=True)
class OpenAIQuestion:
    """A question, and what the object of its answer repeats.

    `args`: of `Client.ask`. `shown`: fields of the request that the object has, too. `has_search`:
    it has an item for the search. `has_results`: with the passages. `has_usage`: a stream of
    chunks ends with one that has the tokens.
    """

    text: str
    args: Mapping[str, Any]
    model: str
    is_stream: bool = False
    has_search: bool = False
    has_results: bool = False
    has_usage: bool = False
    shown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Said:
    """The messages of a request."""

    question: str
    before: tuple[EarlierMessage, ...]
    instructions: str | None


def of_response(body: Any, models: Sequence[str] | None) -> OpenAIQuestion:
    """Returns the question of a request to `/v1/responses`. Raises `BadRequest`."""
    body = _checked(body, RESPONSE_FIELDS)
    said = _said(body, "input", [_of_type(body, "instructions", str, "")])
    _check_text(body.get("text"))
    include = _of_type(body, "include", list, [])
    if unknown := [each for each in include if each != RESULTS and "logprobs" in str(each)]:
        raise _bad("include", f"there are no {unknown[0]}")
    tools = _of_type(body, "tools", list, [])
    top_k = _file_search(tools)
    has_results = bool(tools) and RESULTS in include
    args = _args(body, said, models, top_k=top_k, max_tokens=body.get("max_output_tokens"))
    if has_results:
        args["passages"] = True
    names = ("instructions", "metadata", "max_output_tokens", "temperature", "user", "reasoning")
    return OpenAIQuestion(
        text=said.question,
        args=args,
        model=_model(body, models),
        is_stream=_of_type(body, "stream", bool, False),
        has_search=bool(tools),
        has_results=has_results,
        shown={name: body[name] for name in names if body.get(name) is not None}
        | {"tools": tools, "tool_choice": body.get("tool_choice") or "auto"},
    )


def of_chat(body: Any, models: Sequence[str] | None) -> OpenAIQuestion:
    """Returns the question of a request to `/v1/chat/completions`. Raises `BadRequest`."""
    body = _checked(body, CHAT_FIELDS)
    said = _said(body, "messages", [])
    lengths = [name for name in CHAT_LENGTHS if body.get(name) is not None]
    if len(lengths) > 1:
        raise _bad(lengths[1], f"{lengths[0]} says the same; send one of them")
    max_tokens = body[lengths[0]] if lengths else None
    args = _args(body, said, models, max_tokens=max_tokens, seed=body.get("seed"))
    options = _of_type(body, "stream_options", dict, {})
    return OpenAIQuestion(
        text=said.question,
        args=args,
        model=_model(body, models),
        is_stream=_of_type(body, "stream", bool, False),
        has_usage=bool(options.get("include_usage")),
        shown={} if body.get("metadata") is None else {"metadata": body["metadata"]},
    )


def _checked(body: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object")
    check_fields(body, fields)
    return body


def _model(body: Mapping[str, Any], models: Sequence[str] | None) -> str:
    name = body.get("model")
    if models is None:
        return str(_of_type(body, "model", str, MODEL))
    if not isinstance(name, str) or name not in models:
        known = ", ".join(models)
        raise BadRequest(
            f"model: there is no model {name!r} here; there are: {known}",
            param="model",
            code="model_not_found",
        )
    return name


def _args(
    body: Mapping[str, Any],
    said: _Said,
    models: Sequence[str] | None,
    *,
    top_k: int | None = None,
    max_tokens: Any = None,
    seed: Any = None,
) -> dict[str, Any]:
    own = _of_type(body, "carpool", dict, {})
    if unknown := sorted(own.keys() - set(OWN_FIELDS)):
        known = ", ".join(OWN_FIELDS)
        raise _bad("carpool", f"there is no {unknown[0]!r} in it; there are: {known}")
    model = _model(body, models)
    first, _, rest = model.partition("/")
    workflow = rest or None if first == MODEL else None
    is_condensed = said.before and own.get("condense", True)
    try:
        generation = msgspec.convert(
            {
                "max_tokens": max_tokens,
                "temperature": body.get("temperature"),
                "seed": seed,
                "extractive": own.get("extractive", False),
                "model": None if first == MODEL else model,
            },
            Generation,
        )
    except msgspec.ValidationError as error:
        raise _bad(str(error).rpartition("$.")[2].rstrip("`"), str(error)) from None
    args: dict[str, Any] = {
        "generation": generation,
        "top_k": own.get("top_k", top_k),
        "workflow": workflow or (CONDENSE if is_condensed else None),
        "instructions": said.instructions,
    }
    if said.before and (workflow or is_condensed):
        args["messages"] = said.before
    return args


def _file_search(tools: Sequence[Any]) -> int | None:
    """Returns how many passages the tool asks for."""
    top_k = None
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else tool
        if kind != "file_search" or not isinstance(tool, dict):
            raise _bad("tools", f"there is no tool of type {kind!r}: file_search is the only one")
        if unknown := sorted(tool.keys() - TOOL_FIELDS):
            raise _bad("tools", f"{unknown[0]}: this gateway has no such option of a search")
        if tool.get("vector_store_ids") not in ([], [STORE], None):
            raise _bad("tools", f"vector_store_ids: there is one store, {STORE!r}")
        if tool.get("filters") is not None:
            raise _bad("tools", "filters: filters are not applied by this build")
        top_k = tool.get("max_num_results")
    return top_k


def _check_text(text: Any) -> None:
    given = text.get("format") if isinstance(text, dict) else text
    if given not in (None, {"type": "text"}):
        raise _bad("text", f"an answer is plain text, and no {given!r}")


def _said(body: Mapping[str, Any], name: str, instructions: list[Any]) -> _Said:
    """Returns the messages of a field, in the three parts that a query has."""
    given = body.get(name)
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise _bad(name, "it needs at least one message of the user", "missing_field")
    said = list[EarlierMessage]()
    for number, message in enumerate(given):
        where = f"{name}[{number}]"
        if not isinstance(message, dict):
            raise _bad(where, "it is no message")
        if not _is_message(where, message.get("type", "message")):
            continue
        role, text = message.get("role"), _text(where, message.get("content"))
        if role in ("system", "developer"):
            instructions.append(text)
        elif role in ("user", "assistant"):
            said.append(EarlierMessage(role=role, text=text))
        else:
            raise _bad(where, f"role: {role!r} is none of user, assistant, system, developer")
    if not said or said[-1].role != "user":
        raise _bad(name, "the last message must be the user's question")
    told = [text for text in instructions if isinstance(text, str) and text.strip()]
    *before, last = said
    return _Said(question=last.text, before=tuple(before), instructions="\n\n".join(told) or None)


def _is_message(where: str, kind: Any) -> bool:
    """Returns whether an item is a message; False: its text is in one."""
    if kind == "item_reference":
        raise _bad(where, f"{NO_STATE} (the SDKs do with store: false)")
    if kind != "message" and kind not in PASSED_OVER:
        raise _bad(where, f"there is nothing here that makes or takes a {kind!r}")
    return bool(kind == "message")


def _text(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise _bad(where, f"content: a part of type {kind!r} is no text")
        texts.append(part["text"])
    return "\n".join(texts)


def _of_type(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise _bad(name, f"it is no {kind.__name__}", "wrong_type")
    return value


def _bad(param: str, why: str, code: str = "invalid_value") -> BadRequest:
    return BadRequest(f"{param}: {why}", param=param, code=code)
