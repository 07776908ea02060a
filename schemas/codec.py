"""Encodes and decodes records: CloudEvents 1.0 in binary and structured mode, JSON, and text.

Carpool writes binary mode (Kafka binding: attributes are `ce_` headers, the value is the JSON
record). An application may write any of the four to `rag.queries.v1`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from schemas.answer import Answer
from schemas.errors import RecordError, refusal_of
from schemas.events import EVENT_TYPES as EVENT_TYPES
from schemas.events import SCHEMAS as SCHEMAS
from schemas.headers import (
    ATTEMPT_HEADER,
    CONTENT_TYPE,
    DEADLINE_HEADER,
    KEY_HEADER,
    PRIORITY_HEADER,
    UNREADABLE_HEADERS,
)
from schemas.query import QUERY_BYTES_MAX, Query, check_query
from schemas.record import Headers, Record, Source, header
from schemas.retrieval import Retrieval
from schemas.topics import RETRY_TOPICS
from schemas.workflow import JOURNAL_BYTES_MAX

R = TypeVar("R", bound=Record)

JSON_TYPE = "application/json"
STRUCTURED_TYPE = "application/cloudevents+json"
TEXT_TYPE = "text/plain"
SPEC_VERSION = "1.0"

PASSED_ON = ("traceparent", "tracestate", "correlation_id", "reply_to", ATTEMPT_HEADER, KEY_HEADER)
"""Headers of a query that every record made from it carries too."""
PASSED_ON_BYTES_MAX = 16 * 1024
"""Most bytes of these headers: a query with more is refused, so its answer fits its topic."""
PUBLISHED_BYTES_MAX = PASSED_ON_BYTES_MAX - 128
"""Most bytes of them in a published query: services add `traceparent` and the attempt."""
SERVICE_QUERY_BYTES_MAX = QUERY_BYTES_MAX + 2 * JOURNAL_BYTES_MAX
"""Most bytes of a query that a service publishes: it may have a journal, which has its root."""
KEY_BYTES_MAX = 1_024  # a longer key of a query is not in its answer
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # before UTF-8, by some programs; no part of a query
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
"""A number in a header, with at most as many digits as 64 bits allow."""

_encoder = msgspec.json.Encoder()
_decoders: dict[type[Record], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in EVENT_TYPES
}


def encode(
    record: Record, *, event_id: str, source: str, time_us: int, passed_on: Headers = ()
) -> tuple[bytes, Headers]:
    """Returns (value, headers) of `record` in CloudEvents binary mode.

    The same result must have the same `event_id` each time. `source` names the service, `time_us`
    is epoch microseconds, and the headers `PASSED_ON` of `passed_on` are copied. Raises
    `RecordError` for text that is not well-formed.
    """
    kind = type(record)
    moment = datetime.fromtimestamp(time_us / 1_000_000, UTC).replace(tzinfo=None)
    attributes = (
        (CONTENT_TYPE, JSON_TYPE),
        ("ce_specversion", SPEC_VERSION),
        ("ce_id", event_id),
        ("ce_source", source),
        ("ce_type", EVENT_TYPES[kind]),
        ("ce_time", moment.isoformat(timespec="milliseconds") + "Z"),
        ("ce_dataschema", SCHEMAS[kind]),
    )
    try:
        value = _encoder.encode(record)
        headers = tuple((name, text.encode()) for name, text in attributes)
    except UnicodeEncodeError as error:
        raise RecordError(
            "invalid_utf8", f"{error.object[:80]!r} has half of a surrogate pair; send whole text"
        ) from None
    copied = tuple(pair for pair in passed_on if pair[0] in PASSED_ON)
    if _size_of(copied) > PASSED_ON_BYTES_MAX:
        copied = ()  # the query is refused for them
    return value, headers + copied


def with_key(headers: Headers, key: bytes | None) -> Headers:
    """Returns the headers of a query with the key of its record, for its answer.

    A retried or replayed query has this header already: the key of its first record.
    """
    if key is None or len(key) > KEY_BYTES_MAX or header(headers, KEY_HEADER) is not None:
        return headers
    size = _size_of(pair for pair in headers if pair[0] in PASSED_ON)
    added = ((KEY_HEADER, key),)
    return headers + added if size + _size_of(added) <= PUBLISHED_BYTES_MAX else headers


def decode(kind: type[R], value: bytes | None, headers: Headers) -> R:
    """Returns the record of an internal topic. Raises `RecordError` that names the field."""
    if not value:
        raise RecordError("empty", "the record has no value")
    check_envelope(kind, headers)
    return decode_json(kind, value)


def decode_retrieval(value: bytes | None, headers: Headers) -> Retrieval | Answer:
    """Returns a record of `rag.retrievals.v1`: a retrieval, or an answer whose `source` is set.

    The answer is that of a query which ended before it had a retrieval. Raises `RecordError`.
    """
    if text_of(headers, "ce_type") != EVENT_TYPES[Answer]:
        return decode(Retrieval, value, headers)
    answer = decode(Answer, value, headers)
    if answer.source is None:
        raise RecordError("missing_field", "the answer names no input record", field="$.source")
    return answer


def decode_query(value: bytes | None, headers: Headers, source: Source) -> Query:
    """Returns the checked query of a record of `rag.queries.v1`.

    Its id is the header `ce_id`, else the body's, else one made of the record. Raises `RecordError`
    with the `query_id`, which is found in the same way.
    """
    try:
        query = _decode_query(value, headers, source)
        check_query(query, is_of_service=source.topic in RETRY_TOPICS)
    except RecordError as error:
        raise identified(error, value, headers, source) from None
    return query


def id_of_record(source: Source) -> str:
    """Returns the id of a query that has none: UUIDv5 of topic, partition, offset, timestamp."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"kafka:{source.record}"))


def _decode_query(value: bytes | None, headers: Headers, source: Source) -> Query:
    header_id = text_of(headers, "ce_id")
    if not value:
        raise RecordError("empty", "the record has no value; send a question")
    _check_headers(headers)
    _check_size(value, headers, is_of_service=source.topic in RETRY_TOPICS)
    if value[0] == 0 and len(value) > 5:
        raise RecordError(
            "bad_envelope",
            "the value begins with a zero byte, as a schema registry's serializer writes it; send "
            "plain JSON or text, without a schema registry",
        )
    value = value.removeprefix(BYTE_ORDER_MARK)
    # Without a content type it is JSON by its first byte, else text.
    like = JSON_TYPE if value.lstrip()[:1] in (b"{", b"[") else TEXT_TYPE
    content_type = (text_of(headers, CONTENT_TYPE) or like).split(";")[0].strip().lower()
    event_id: str | None = None
    if content_type == STRUCTURED_TYPE:
        body, event_id = _structured(value)
    else:
        _check_version(Query, text_of(headers, "ce_specversion"), text_of(headers, "ce_dataschema"))
        if content_type == TEXT_TYPE:
            body = {"text": utf8(value)}
        elif content_type == JSON_TYPE or content_type.endswith("+json"):
            body = _json_object(value)
        else:
            raise RecordError(
                "bad_envelope",
                f"content-type {content_type!r} is not known; use {JSON_TYPE} or {TEXT_TYPE}",
            )
    ids = (header_id, event_id, body.get("query_id"), id_of_record(source))
    fields = _header_fields(headers) | {"query_id": next(id for id in ids if id is not None)}
    # Encoded and decoded again: the decoder reads base64 vectors and JSON filters.
    return decode_json(Query, _encoder.encode(body | fields))


def _check_size(value: bytes, headers: Headers, *, is_of_service: bool) -> None:
    headers_max = PASSED_ON_BYTES_MAX if is_of_service else PUBLISHED_BYTES_MAX
    if (size := _size_of(pair for pair in headers if pair[0] in PASSED_ON)) > headers_max:
        raise RecordError(
            "too_large",
            f"the headers {', '.join(PASSED_ON)} are {size} bytes; at most {headers_max} are "
            "passed on",
        )
    bytes_max = SERVICE_QUERY_BYTES_MAX if is_of_service else QUERY_BYTES_MAX
    if len(value) > bytes_max:
        raise RecordError(
            "too_large",
            f"the query is {len(value)} bytes; at most {bytes_max} are accepted. Write its text as "
            "UTF-8: with escapes (\\ud83d\\ude00) a character has up to 12 bytes",
        )


def _structured(value: bytes) -> tuple[dict[str, Any], str | None]:
    """Returns (body, event id) of a structured CloudEvent; its `data` is a query or a text."""
    event = _json_object(value)
    if event.get("specversion") is None:
        raise RecordError(
            "bad_envelope", "a structured CloudEvent needs `specversion`", field="$.specversion"
        )
    for name in ("specversion", "dataschema", "id"):
        if not isinstance(event.get(name), str | None):
            raise RecordError("bad_envelope", f"`{name}` must be a string", field=f"$.{name}")
    _check_version(Query, event["specversion"], event.get("dataschema"))
    data = event.get("data")
    if not isinstance(data, dict | str):
        raise RecordError(
            "missing_field",
            "a structured CloudEvent needs `data`: a query or a text",
            field="$.data",
        )
    return ({"text": data} if isinstance(data, str) else data), event.get("id")


def _header_fields(headers: Headers) -> dict[str, Any]:
    """Returns the fields of a query in headers, which have precedence over the body's."""
    fields: dict[str, Any] = {}
    for name, field in ((DEADLINE_HEADER, "deadline"), (PRIORITY_HEADER, "priority")):
        text = text_of(headers, name)
        if text is not None:
            if WHOLE_NUMBER.fullmatch(text) is None:
                raise RecordError(
                    "wrong_type", f"header {name}: {text[:40]!r} is not a whole number", field=name
                )
            fields[field] = int(text)
    return fields


def _check_headers(headers: Headers) -> None:
    if any(name == UNREADABLE_HEADERS for name, _ in headers):
        raise RecordError(
            "bad_envelope",
            "the name of a header is not UTF-8, so that none of its headers can be read",
        )


def check_envelope(kind: type[Record], headers: Headers) -> None:
    """Raises `RecordError` for headers that are not readable, or of another version."""
    _check_headers(headers)
    _check_version(kind, text_of(headers, "ce_specversion"), text_of(headers, "ce_dataschema"))


def _check_version(kind: type[Record], spec_version: str | None, schema: str | None) -> None:
    if spec_version not in (None, SPEC_VERSION):
        raise RecordError(
            "unknown_version", f"CloudEvents {spec_version!r} is not known; use {SPEC_VERSION}"
        )
    if schema is not None and schema.startswith("urn:carpool:") and schema != SCHEMAS[kind]:
        raise RecordError(
            "unknown_version",
            f"{schema!r} is not known to this build, which reads {SCHEMAS[kind]!r}",
        )


def _size_of(headers: Iterable[tuple[str, bytes | None]]) -> int:
    return sum(len(name) + len(value or b"") for name, value in headers)


def text_of(headers: Headers, name: str) -> str | None:
    """Returns a header; None where there is none. Raises `RecordError` for other bytes."""
    value = header(headers, name)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RecordError("bad_envelope", f"header {name} is not UTF-8", field=name) from None


def utf8(value: bytes) -> str:
    """Returns a text. Raises `RecordError` for bytes that are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RecordError(
            "invalid_utf8", f"the value is not UTF-8: byte {error.start} ({error.reason})"
        ) from None


def _json_object(value: bytes) -> dict[str, Any]:
    utf8(value)
    try:
        body = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RecordError("not_json", f"the value is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RecordError(
            "wrong_type", f"the value is a JSON {type(body).__name__}, not an object", field="$"
        )
    return body


def decode_json(kind: type[R], value: bytes) -> R:
    """Returns a record. Raises `RecordError` that names the field."""
    try:
        record: R = _decoders[kind].decode(value)
        return record
    except msgspec.ValidationError as error:
        raise refusal_of(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        utf8(value)
        raise RecordError("not_json", f"the value is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise RecordError("invalid_utf8", f"the value is not UTF-8: {error.reason}") from None


def identified(
    error: RecordError, value: bytes | None, headers: Headers, source: Source
) -> RecordError:
    """Adds the query id: that of the header or of a bad body, else one made of the record.

    Bytes that are not UTF-8, half surrogates and numbers that are none matter in the id only.
    """
    query_id = error.query_id
    if query_id is None:
        with suppress(RecordError):
            query_id = text_of(headers, "ce_id")
    if query_id is None and value:
        try:
            text = value.removeprefix(BYTE_ORDER_MARK).decode(errors="surrogateescape")
            # Thousands of digits are no int in Python.
            body = json.loads(text, strict=False, parse_int=float)
        except (ValueError, RecursionError):
            body = None
        if isinstance(body, dict):
            data = body.get("data")
            named = (body.get("id") if "specversion" in body else None, body.get("query_id"))
            inner = (data.get("query_id"),) if isinstance(data, dict) else ()
            query_id = next((name for name in named + inner if isinstance(name, str)), None)
    if query_id is not None and (
        not 1 <= len(query_id) <= 256 or any("\ud800" <= char <= "\udfff" for char in query_id)
    ):
        query_id = None
    query_id = query_id or id_of_record(source)
    return RecordError(error.reason, str(error), field=error.field, query_id=query_id)
