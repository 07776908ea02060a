"""Reads a line of a batch: OpenAI's batch line, a question as JSON, or plain text.

A line is refused if it asks for anything that Carpool cannot honour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec

from producers.build_query import QueryRecord, QuestionArgs, build_record
from producers.openai.fields import BadRequest
from producers.openai.questions import MODEL, OpenAIQuestion, of_chat, of_response
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
CHAT, RESPONSES = URLS = ("/v1/chat/completions", "/v1/responses")


@dataclass(frozen=True, kw_only=True)
class BatchLine:
    """A question of a batch. `arguments`: its own, and those of the batch.

    `asked` and `url` are those of a line of OpenAI's.
    """

    text: str | None
    custom_id: str | None
    arguments: QuestionArgs
    asked: OpenAIQuestion | None = None
    url: str | None = None

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


def _one_of(line: Object, names: tuple[str, ...], *, or_else: str) -> Any:
    """Returns the field that it has of `names`; None if it has `or_else` instead."""
    found = [name for name in names if line.get(name) is not None]
    if len(found) > 1:
        raise _refusal(found[1], f"`{found[0]}` says the same; send one of them")
    if not found and not line.get(or_else):
        raise RecordError("missing_field", f"it has no `{names[0]}`", field=f"$.{names[0]}")
    return line[found[0]] if found else None


def _own(line: Object, options: BatchOptions) -> BatchLine:
    custom_id = next((str(line[name]) for name in IDS if line.get(name) is not None), None)
    given = {name: line[name] for name in OWN_FIELDS if line.get(name) is not None}
    wishes = _converted(given.pop("generation", {}), Object, "generation")
    fields = Generation.__struct_fields__
    wishes |= {name: line[name] for name in fields if line.get(name) is not None}
    if wishes.get("model") == MODEL:
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
    url = line.get("url", CHAT)
    if line.get("method", "POST") != "POST" or url not in URLS:
        raise _refusal("url", f"only POST to {' and '.join(URLS)} is answered")
    if line.get("body") is None:
        raise RecordError("missing_field", "it has no `body`", field="$.body")
    try:
        asked = (of_chat if url == CHAT else of_response)(line["body"], options.models)
    except BadRequest as error:
        where = f".{error.param}" if error.param else ""
        why = str(error).removeprefix(f"{error.param}: ")
        raise _refusal(f"body{where}", why) from None
    if asked.is_stream:
        raise _refusal("body.stream", "an answer of a batch is no stream")
    custom_id = line.get("custom_id")
    custom_id = None if custom_id is None else str(custom_id)
    return replace(_line(asked.text, custom_id, asked.args, options), asked=asked, url=url)


def _line(
    text: Any, custom_id: str | None, given: Mapping[str, Any], options: BatchOptions
) -> BatchLine:
    """Returns a line with what it has, and the options of the batch, which win."""
    generation = given.get("generation") or Generation()
    if options.model is not None:
        model = None if options.model == MODEL else options.model
        generation = msgspec.structs.replace(generation, model=model)
    if options.max_tokens is not None:
        generation = msgspec.structs.replace(generation, max_tokens=options.max_tokens)
    arguments: Any = dict(given)
    for name in ("top_k", "workflow", "tenant"):
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
