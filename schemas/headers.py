"""The one list of record headers: the name of each header, who writes it, and what it means."""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.record import Headers, header

CONTENT_TYPE = "content-type"
DEADLINE_HEADER = "rag-deadline-ms"
PRIORITY_HEADER = "rag-priority"
TENANT_HEADER = "rag-tenant"
TENANT_CHARS_MAX = 256
ATTEMPT_HEADER = "rag-attempt"
KEY_HEADER = "rag-key"
NOT_BEFORE_HEADER = "rag-not-before-ms"
ORIGIN_HEADER = "rag-origin"
INDEX_HEADER = "rag-index-version"
IGNORED_NAMES = {
    ATTEMPT_HEADER: "rag-ignored-attempt",
    NOT_BEFORE_HEADER: "rag-ignored-not-before-ms",
    ORIGIN_HEADER: "rag-ignored-origin",
    INDEX_HEADER: "rag-ignored-index-version",
}
"""The headers of a retry, and their names in other records, where no service believes them."""
RETRY_HEADERS = tuple(IGNORED_NAMES)
UNREADABLE_HEADERS = "rag-unreadable-headers"
REPLAYED_FROM_HEADER = "rag-replayed-from"
ERROR_PREFIX = "rag.errors."
TRUNCATED_HEADER = ERROR_PREFIX + "truncated.from.bytes"
HEADERS_LEFT_OUT_HEADER = ERROR_PREFIX + "headers.left.out"

Writer = Literal["application", "any CloudEvents writer", "services", "`carpool dlq replay`"]


class HeaderDoc(msgspec.Struct, frozen=True):
    """One header as `docs/reference/headers.md` shows it."""

    name: str
    writer: Writer
    meaning: str


_OF_ERRORS = {
    "topic": "the topic where the record was first read.",
    "partition": "the partition where the record was first read.",
    "offset": "the offset where the record was first read.",
    "timestamp": "the timestamp of that record, epoch milliseconds.",
    "group": "the consumer group of the service that gave the record up.",
    "stage": "the service that gave the record up.",
    "attempts": "the number of attempts that were made.",
    "exception.class.name": "`RecordError.REASON` for refused input, `QueryFailure.REASON` for "
    "processing.",
    "exception.message": "the reason in words, at most 4 KiB.",
}
_MEANINGS: dict[Writer, dict[str, str]] = {
    "any CloudEvents writer": {
        CONTENT_TYPE: "`application/json` (a query), `text/plain` (a bare question) or "
        "`application/cloudevents+json` (a structured CloudEvent). Without it, a value that "
        "begins like JSON is read as JSON, any other value as a bare question.",
        "ce_specversion": "The CloudEvents version: `1.0`.",
        "ce_id": "On a query: its `query_id`. On other records: an id that stays the same when the "
        "same result is written again.",
        "ce_source": "The program that wrote the record.",
        "ce_type": "The kind of record, such as `rag.query.submitted`.",
        "ce_time": "When the record was written, RFC 3339.",
        "ce_dataschema": "The version of the record, such as `urn:carpool:query:1`. A reader "
        "refuses a version that it does not know.",
    },
    "application": {
        DEADLINE_HEADER: "Epoch milliseconds after which an answer is of no use. Wins over the "
        "field `deadline`.",
        PRIORITY_HEADER: "The priority of a query within its class, lower is sooner. Wins over the "
        "field `priority`.",
        TENANT_HEADER: "The tenant of the question, at most 256 characters. Tenants get equal "
        "turns, their tokens are counted by name, and answers are reused only within one tenant. "
        "It does not isolate data.",
        "traceparent": "The trace context (W3C). Every record that is made from the query carries "
        "it on.",
        "tracestate": "The vendor part of the trace context (W3C).",
        "correlation_id": "Any bytes. Copied to every record made from the query, so that its "
        "answer is recognised.",
        "reply_to": "Copied to every record made from the query.",
    },
    "services": {
        ATTEMPT_HEADER: "Which attempt this is, counted from 1. Written when a query is retried, "
        "and accepted on the topics of retries only.",
        KEY_HEADER: "On an answer: the key of the record that the application published, if it has "
        "at most 1 KiB. Several questions may have the same key.",
        NOT_BEFORE_HEADER: "On a retried query: when to begin, epoch milliseconds. Accepted on the "
        "topics of retries only.",
        ORIGIN_HEADER: "On a retried query: the record that the application published, as "
        "topic/partition/offset/timestamp. Every answer names that record as its `source`. "
        "Accepted on the topics of retries only.",
        INDEX_HEADER: "On a query that is planned again, because the searcher has a newer index: "
        "the version of that index. Accepted on the topics of retries only.",
        **{
            ignored: f"`{name}`, ignored by all services: on a query whose application wrote that "
            "header, and on a dead letter, so that a record with all its headers is a new query."
            for name, ignored in IGNORED_NAMES.items()
        },
        UNREADABLE_HEADERS: "Replaces all headers of a record that has a header name which is not "
        "UTF-8. Such a record becomes a dead letter.",
        **{ERROR_PREFIX + name: f"On a dead letter: {text}" for name, text in _OF_ERRORS.items()},
        TRUNCATED_HEADER: "On a dead letter that was cut to fit its topic: the size of its value "
        "before the cut.",
        HEADERS_LEFT_OUT_HEADER: "On a dead letter whose headers did not fit: how many headers are "
        "missing.",
    },
    "`carpool dlq replay`": {
        REPLAYED_FROM_HEADER: "On a replayed record: the dead letter that it was, as "
        "topic/partition/offset."
    },
}
HEADERS = tuple(
    HeaderDoc(name, writer, meaning)
    for writer, meanings in _MEANINGS.items()
    for name, meaning in meanings.items()
)


def ignored_retry_headers(headers: Headers) -> Headers:
    """Returns the headers, those of retries under names that no service believes."""
    return tuple((IGNORED_NAMES.get(name, name), value) for name, value in headers)


def tenant_of(headers: Headers) -> str:
    """Returns the tenant for fair scheduling, at most `TENANT_CHARS_MAX` characters; "" for none.

    The header `rag-tenant` does not isolate data; the field `tenant` of a query asks for isolation.
    """
    value = header(headers, TENANT_HEADER)
    return "" if value is None else value.decode(errors="replace")[:TENANT_CHARS_MAX]
