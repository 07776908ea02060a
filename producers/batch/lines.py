"""Reads a line of a batch: OpenAI's batch line, a question as JSON, or plain text.

A line is refused if it asks for anything that Carpool cannot honour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from producers.build_query import QueryRecord, QuestionArgs, build_record
from schemas.batch import BatchOptions
from schemas.errors import RecordError
from schemas.query import Generation

Kind = Literal["OpenAI's batch lines", "questions as JSON", "plain text"]
Object = dict[str, Any]
T = TypeVar("T")

OWN_FIELDS = frozenset(
    {"top_k", "nprobe", "embedding_model", "conversation_id", "generation", "workflow"}
)
"""Fields of a query that a line may have, with a text or a `vector`: numbers, or in base64.

And each field of `generation`.
"""
OF_OTHERS = frozenset({"answers", "passages", "metadata"})
"""Fields that are not asked: gold of `carpool eval`, and what the user wants."""
IDS = ("custom_id", "id", "query_id")
TEXTS = ("text", "question")
ANY_MODEL = "carpool"
"""As a model: whichever the generator has; `carpool/NAME` is the workflow NAME."""
URLS = ("/v1/chat/completions", "/v1/responses")
MESSAGES = ("messages", "input")
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
NEUTRAL: Mapping[str, object] = {
    **dict.fromkeys(("n", "top_p"), 1),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), 0),
    **dict.fromkeys(("stream", "store", "background", "logprobs"), False),
    "tools": [],
}
"""Fields of OpenAI's requests that change nothing if they have this value."""
IGNORED = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier"})


@dataclass(frozen=True, kw_only=True)
class BatchLine:
    """A question of a batch. `arguments`: its own, and those of the batch."""

    text: str | None
    custom_id: str | None
    arguments: QuestionArgs

    @property
    def generation(self) -> Generation:
        """Its options for the model."""
        return self.arguments.get("generation") or Generation()

    def record(self, query_id: str, now_us: int) -> QueryRecord:
        """Returns the record that asks it. Raises `RecordError` that names the field."""
        arguments: QuestionArgs = {**self.arguments, "query_id": query_id, "priority": "batch"}
        if self.custom_id is not None:
            arguments["headers"] = {"correlation_id": self.custom_id}
        return build_record(self.text, now_us=now_us, **arguments)


def kind_of(first: bytes) -> Kind:
    """Returns what the lines of a file are, from the first one that is not blank.

    Raises `RecordError` for JSON that is no question.
    """
    if not first.lstrip().startswith(b"{"):
        return "plain text"
    line = _object(first)
    if "body" in line or "method" in line:
        return "OpenAI's batch lines"
    _one_of(line, TEXTS, or_else="vector")
    return "questions as JSON"


def read_line(kind: Kind, content: bytes, options: BatchOptions) -> BatchLine:
    """Returns the question of a line. Raises `RecordError` that names the field."""
    if kind == "plain text":
        try:
            text = content.decode().strip()
        except UnicodeDecodeError as error:
            raise RecordError("invalid_utf8", f"it is not UTF-8: {error.reason}") from None
        return _line(text, None, {}, options)
    line = _object(content)
    return _openai(line, options) if kind == "OpenAI's batch lines" else _own(line, options)


def _object(content: bytes) -> Object:
    try:
        line = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError("not_json", f"it is no JSON: {error}", field="$") from None
    if not isinstance(line, dict):
        raise RecordError("wrong_type", "it is no JSON object", field="$")
    return line


def _one_of(line: Object, names: tuple[str, ...], *, or_else: str = "") -> Any:
    """Returns the field that it has of `names`; None if it has `or_else` instead, or this is
    `none`.
    """
    found = [name for name in names if line.get(name) is not None]
    if len(found) > 1:
        raise _refusal(found[1], f"`{found[0]}` says the same; send one of them")
    if not found and or_else != "none" and not line.get(or_else):
        raise RecordError("missing_field", f"it has no `{names[0]}`", field=f"$.{names[0]}")
    return line[found[0]] if found else None


def _own(line: Object, options: BatchOptions) -> BatchLine:
    custom_id = next((str(line[name]) for name in IDS if line.get(name) is not None), None)
    given = {name: line[name] for name in OWN_FIELDS if line.get(name) is not None}
    wishes = _converted(given.pop("generation", {}), Object, "generation")
    fields = Generation.__struct_fields__
    wishes |= {name: line[name] for name in fields if line.get(name) is not None}
    if wishes.get("model") == ANY_MODEL:
        del wishes["model"]
    given["generation"] = _converted(wishes, Generation, "generation")
    if isinstance(vector := line.get("vector"), list):
        given["vector"] = vector
    elif vector is not None:
        given["vector"] = _converted(vector, bytes, "vector")
    known = {*OWN_FIELDS, *OF_OTHERS, *IDS, *TEXTS, "vector", *Generation.__struct_fields__}
    for name in line.keys() - known:
        if line[name] is not None:
            why = "a line cannot have it; leave it out, or put it into `metadata`"
            raise _refusal(name, why, "unsupported")
    return _line(_one_of(line, TEXTS, or_else="vector"), custom_id, given, options)


def _openai(line: Object, options: BatchOptions) -> BatchLine:
    if line.get("method", "POST") != "POST" or line.get("url", URLS[0]) not in URLS:
        raise _refusal("url", f"only POST to {' and '.join(URLS)} is answered")
    body = line.get("body")
    if not isinstance(body, dict):
        raise RecordError("missing_field", "it has no `body`", field="$.body")
    body = {name: value for name, value in body.items() if value is not None}
    messages = _one_of(body, MESSAGES)
    length = _one_of(body, LENGTHS, or_else="none")
    given: dict[str, Any] = {}
    model = body.get("model", ANY_MODEL)
    if isinstance(model, str) and model.partition("/")[0] == ANY_MODEL:
        given["workflow"] = model.partition("/")[2] or None
        model = None
    fields = {"model": model, "max_tokens": length}
    fields |= {name: body.get(name) for name in ("temperature", "seed")}
    given["generation"] = _converted(fields, Generation, "body")
    for name in body.keys() - IGNORED - {*fields, *LENGTHS, *MESSAGES}:
        if name not in NEUTRAL or body[name] != NEUTRAL[name]:
            raise _refusal(f"body.{name}", "cannot be honoured; leave it out", "unsupported")
    custom_id = line.get("custom_id")
    text = _question(messages)
    return _line(text, None if custom_id is None else str(custom_id), given, options)


def _question(messages: Any) -> str:
    """Returns the one message of the user."""
    if isinstance(messages, str):
        return messages
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict):
        content = messages[0].get("content")
        if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
            content = content[0].get("text")
        if isinstance(content, str) and messages[0].get("role") == "user":
            return content
    why = "is not one message of the user, with one text; others are not read"
    raise _refusal("body.messages", why, "unsupported")


def _line(
    text: Any, custom_id: str | None, given: Mapping[str, Any], options: BatchOptions
) -> BatchLine:
    """Returns a line with what it has, and the options of the batch, which win."""
    generation = given.get("generation") or Generation()
    if options.model is not None:
        model = None if options.model == ANY_MODEL else options.model
        generation = msgspec.structs.replace(generation, model=model)
    if options.max_tokens is not None:
        generation = msgspec.structs.replace(generation, max_tokens=options.max_tokens)
    arguments: Any = dict(given)
    for name in ("top_k", "workflow"):
        if (value := getattr(options, name)) is not None:
            arguments[name] = value
    arguments["generation"] = None if generation == Generation() else generation
    return BatchLine(text=text, custom_id=custom_id, arguments=arguments)


def _converted(value: Any, kind: type[T], field: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _refusal(field, str(error)) from None


def _refusal(
    field: str, why: str, reason: Literal["invalid_value", "unsupported"] = "invalid_value"
) -> RecordError:
    return RecordError(reason, f"{field}: {why}", field=f"$.{field}")
