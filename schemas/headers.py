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


HEADERS: tuple[HeaderDoc, ...] = (
    HeaderDoc(
        CONTENT_TYPE,
        "any CloudEvents writer",
        "`application/json` (a query), `text/plain` (a bare question) or "
        "`application/cloudevents+json` (a structured CloudEvent). Without it, a value that "
        "begins like JSON is read as JSON, any other value as a bare question.",
    ),
    HeaderDoc("ce_specversion", "any CloudEvents writer", "The CloudEvents version: `1.0`."),
    HeaderDoc(
        "ce_id",
        "any CloudEvents writer",
        "On a query: its `query_id`. On other records: an id that stays the same when the same "
        "result is written again.",
    ),
    HeaderDoc("ce_source", "any CloudEvents writer", "The program that wrote the record."),
    HeaderDoc(
        "ce_type", "any CloudEvents writer", "The kind of record, such as `rag.query.submitted`."
    ),
    HeaderDoc("ce_time", "any CloudEvents writer", "When the record was written, RFC 3339."),
    HeaderDoc(
        "ce_dataschema",
        "any CloudEvents writer",
        "The version of the record, such as `urn:carpool:query:1`. A reader refuses a version "
        "that it does not know.",
    ),
    HeaderDoc(
        DEADLINE_HEADER,
        "application",
        "Epoch milliseconds after which an answer is of no use. Wins over the field `deadline`.",
    ),
    HeaderDoc(
        PRIORITY_HEADER,
        "application",
        "The priority of a query within its class, lower is sooner. Wins over the field "
        "`priority`.",
    ),
    HeaderDoc(
        TENANT_HEADER,
        "application",
        "The tenant of the question, at most 256 characters. Tenants get equal turns, their tokens "
        "are counted by name, and answers are reused only within one tenant. It does not isolate "
        "data.",
    ),
    HeaderDoc(
        "traceparent",
        "application",
        "The trace context (W3C). Every record that is made from the query carries it on.",
    ),
    HeaderDoc("tracestate", "application", "The vendor part of the trace context (W3C)."),
    HeaderDoc(
        "correlation_id",
        "application",
        "Any bytes. Copied to every record made from the query, so that its answer is recognised.",
    ),
    HeaderDoc("reply_to", "application", "Copied to every record made from the query."),
    HeaderDoc(
        ATTEMPT_HEADER,
        "services",
        "Which attempt this is, counted from 1. Written when a query is retried, and accepted on "
        "the topics of retries only.",
    ),
    HeaderDoc(
        KEY_HEADER,
        "services",
        "On an answer: the key of the record that the application published, if it has at most "
        "1 KiB. Several questions may have the same key.",
    ),
    HeaderDoc(
        NOT_BEFORE_HEADER,
        "services",
        "On a retried query: when to begin, epoch milliseconds. Accepted on the topics of retries "
        "only.",
    ),
    HeaderDoc(
        ORIGIN_HEADER,
        "services",
        "On a retried query: the record that the application published, as "
        "topic/partition/offset/timestamp. Every answer names that record as its `source`. "
        "Accepted on the topics of retries only.",
    ),
    HeaderDoc(
        INDEX_HEADER,
        "services",
        "On a query that is planned again, because the searcher has a newer index: the version of "
        "that index. Accepted on the topics of retries only.",
    ),
    *(
        HeaderDoc(
            ignored,
            "services",
            f"`{name}`, ignored by all services: on a query whose application wrote that header, "
            "and on a dead letter, so that a record with all its headers is a new query.",
        )
        for name, ignored in IGNORED_NAMES.items()
    ),
    HeaderDoc(
        UNREADABLE_HEADERS,
        "services",
        "Replaces all headers of a record that has a header name which is not UTF-8. Such a "
        "record becomes a dead letter.",
    ),
    HeaderDoc(
        REPLAYED_FROM_HEADER,
        "`carpool dlq replay`",
        "On a replayed record: the dead letter that it was, as topic/partition/offset.",
    ),
    *(
        HeaderDoc(ERROR_PREFIX + name, "services", "On a dead letter: " + meaning)
        for name, meaning in (
            ("topic", "the topic where the record was first read."),
            ("partition", "the partition where the record was first read."),
            ("offset", "the offset where the record was first read."),
            ("timestamp", "the timestamp of that record, epoch milliseconds."),
            ("group", "the consumer group of the service that gave the record up."),
            ("stage", "the service that gave the record up."),
            ("attempts", "the number of attempts that were made."),
            (
                "exception.class.name",
                "`RecordError.REASON` for refused input, `QueryFailure.REASON` for processing.",
            ),
            ("exception.message", "the reason in words, at most 4 KiB."),
        )
    ),
    HeaderDoc(
        TRUNCATED_HEADER,
        "services",
        "On a dead letter that was cut to fit its topic: the size of its value before the cut.",
    ),
    HeaderDoc(
        HEADERS_LEFT_OUT_HEADER,
        "services",
        "On a dead letter whose headers did not fit: how many headers are missing.",
    ),
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
