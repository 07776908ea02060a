"""Where a query comes from: the record that the client published, its attempt, its deadline. Pure.

A query that is written again, on the topics of retries, has headers that say so. They are believed
on these topics only, which applications do not write.
"""

from __future__ import annotations

import re
from dataclasses import replace

from carpool.kafka.records import Message
from schemas.codec import WHOLE_NUMBER, decode_query
from schemas.errors import RecordError
from schemas.headers import ATTEMPT_HEADER, INDEX_HEADER, ORIGIN_HEADER, ignored_retry_headers
from schemas.query import Query
from schemas.record import Headers, Source, header
from schemas.topics import QUERY_TOPICS, RETRY_TOPICS

ORIGIN = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,18})/([0-9]{1,18})/([0-9]{1,18})")


def believed(message: Message) -> Message:
    """Returns a record as a service takes it in: no application can write headers of a retry.

    On the topics of queries they get other names. Records of other topics are as they were read.
    """
    if message.source.topic not in QUERY_TOPICS:
        return message
    headers = ignored_retry_headers(message.headers)
    return message if headers == message.headers else replace(message, headers=headers)


def read_query(message: Message) -> Query:
    """Returns the query of a record of the topics of queries or retries. Raises `RecordError`."""
    query = decode_query(message.value, message.headers, message.source)
    if message.source.topic in RETRY_TOPICS and origin_of(message) == message.source:
        raise RecordError(
            "bad_envelope",
            f"a record of {message.source.topic} names in {ORIGIN_HEADER} the query that it "
            f"retries; only services write this topic: publish questions to {QUERY_TOPICS[0]}",
            query_id=query.query_id,
        )
    return query


def origin_of(message: Message) -> Source:
    """Returns the record that the client published: this record, or the one that it retries."""
    if message.source.topic not in RETRY_TOPICS:
        return message.source
    found = ORIGIN.fullmatch(_text(message.headers, ORIGIN_HEADER))
    if found is None or found[1] not in QUERY_TOPICS:
        return message.source
    topic, partition, offset, timestamp_ms = found.groups()
    return Source(
        topic=topic, partition=int(partition), offset=int(offset), timestamp_ms=int(timestamp_ms)
    )


def index_wanted(message: Message) -> str | None:
    """Returns the index with which this query is planned, or a newer one; None: with any."""
    if message.source.topic not in RETRY_TOPICS:
        return None
    return _text(message.headers, INDEX_HEADER) or None


def attempt_of(headers: Headers) -> int:
    """Returns the attempt that the headers name, from 1; 1 where they name no number."""
    text = _text(headers, ATTEMPT_HEADER)
    return max(1, int(text)) if WHOLE_NUMBER.fullmatch(text) else 1


def later_attempt(headers: Headers) -> str:
    """Returns a suffix for ids of results of a retry; empty for the first attempt."""
    attempt = attempt_of(headers)
    return f"/{attempt}" if attempt > 1 else ""


def deadline_us_of(query: Query, message: Message) -> int | None:
    """Returns the deadline of a query that came with `message`, by the clock of this process.

    The host's clock, or that of the record's writer, may have left it.
    """
    return None if query.deadline is None else max(0, query.deadline * 1_000 - message.host_lead_us)


def _text(headers: Headers, name: str) -> str:
    return (header(headers, name) or b"").decode(errors="replace")
