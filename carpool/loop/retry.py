"""Decides whether a failed query is retried as a record of `rag.retries.v1`, or ends. Pure.

The query is the unit of retry. The new record has the same class, id and deadline, and three
headers: the attempt, when to begin, and the record that the client published (`rag-origin`), so
that every answer names that record. The new record owes the one terminal answer; the old record
owes none. A query whose group was planned with an older index than the searcher has did not fail:
it is planned again, as the same attempt. These headers are believed on the topics of retries only,
which applications do not write.
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from carpool.dead_letters.letter import Reason, make_letter
from carpool.kafka.records import Message, Output
from carpool.kafka.sizes import fits
from carpool.loop.stage import QueryFailure, Unit
from schemas.answer import Stage as StageName
from schemas.codec import (
    SERVICE_QUERY_BYTES_MAX,
    WHOLE_NUMBER,
    decode_query,
    encode,
    identified,
)
from schemas.errors import RecordError
from schemas.headers import (
    ATTEMPT_HEADER,
    INDEX_HEADER,
    NOT_BEFORE_HEADER,
    ORIGIN_HEADER,
    RETRY_HEADERS,
    ignored_retry_headers,
)
from schemas.query import Query, root_of
from schemas.record import Headers, Source, header
from schemas.topics import QUERY_TOPICS, RETRIES, RETRY_TOPICS, in_class_of

DELAYED_MAX = 1_000
"""Queries that wait for their retry, at most; beyond it a retry starts immediately.

A waiting query delays the commit of later records of its partition.
"""
ORIGIN = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,18})/([0-9]{1,18})/([0-9]{1,18})")


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureLimits:
    """The attempts of a query (1: no retry), the delay of a retry, and failures in a row.

    `in_a_row_max`: the service then stops, so that its topic does not become dead letters.
    """

    attempts_max: int = 3
    retry_delay_us: int = 1_000_000
    in_a_row_max: int = 20


class RetryDecision(NamedTuple):
    """`outputs`: the record that retries the query ("again"), or its dead letter ("failed")."""

    outcome: Literal["again", "failed"]
    outputs: tuple[Output, ...]


def decide_retry(
    failure: QueryFailure, *, limits: FailureLimits, group: str, stage: StageName, now_us: int
) -> RetryDecision:
    """Retries while attempts are left and the next one begins before the deadline."""
    source = failure.source
    attempt = attempt_of(failure.headers)
    begin_us = now_us + limits.retry_delay_us
    has_time = failure.deadline_us is None or begin_us < failure.deadline_us
    if failure.is_transient and attempt < limits.attempts_max and has_time:
        next_try = (
            (ATTEMPT_HEADER, str(attempt + 1).encode()),
            (NOT_BEFORE_HEADER, str(-(-begin_us // 1_000)).encode()),
        )
        again = _written_again(failure.query, source, failure.headers, next_try, stage, now_us)
        if again is not None:
            return RetryDecision("again", (again,))
    key, value, own = _encoded(root_of(failure.query), stage, now_us)
    letter = make_letter(
        source=source,
        key=key,
        value=value,
        headers=_with_own(failure.headers, own),
        reason=Reason(
            group=group,
            stage=stage,
            attempts=attempt,
            class_name=f"{QueryFailure.__name__}.{failure.error_type}",
            message=failure.message,
        ),
    )
    return RetryDecision("failed", (letter,))


def plan_again(
    query: Query,
    source: Source,
    headers: Headers,
    *,
    index_version: str,
    stage: StageName,
    now_us: int,
) -> Output | None:
    """Returns the record that asks for a plan with this index or a newer one; the attempt stays.

    `query`: as published. `source`: the record that the client published. `headers`: of the query.
    None: the record would be too large.
    """
    same_try = (
        (ATTEMPT_HEADER, str(attempt_of(headers)).encode()),
        (INDEX_HEADER, index_version.encode()),
    )
    return _written_again(query, source, headers, same_try, stage, now_us)


def send_back(
    query: Query, source: Source, headers: Headers, *, stage: StageName, now_us: int
) -> Output | None:
    """Returns the record with which a workflow searches; None: it would be too large."""
    return _written_again(query, source, headers, (), stage, now_us)


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


def believed(message: Message) -> Message:
    """Returns a record as the loop takes it in: no application can write headers of a retry.

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


def as_record_error(error: Exception, message: Message) -> RecordError:
    """Returns the error of a record that cannot be decoded, with its query id."""
    if isinstance(error, RecordError):
        return error
    failed = RecordError("processing_failed", f"{type(error).__name__}: {error}")
    return identified(failed, message.value, message.headers, message.source)


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


def begin_us_of(message: Message, retry_delay_us: int) -> int:
    """Returns the time to begin a query, epoch microseconds; 0: now.

    The time is from its header, and at most one retry delay after the record arrived.
    """
    text = _text(message.headers, NOT_BEFORE_HEADER)
    if message.source.topic not in RETRY_TOPICS or not WHOLE_NUMBER.fullmatch(text):
        return 0
    return min(int(text) * 1_000, message.received_us + retry_delay_us)


class RetryDelay:
    """Units that wait for their retry, while later records of their partition are processed.

    Not thread-safe. At most `DELAYED_MAX` wait. Each call costs O(log n), `forget` O(n).
    """

    def __init__(self) -> None:
        # A heap by time; ids are unique, so units are never compared.
        self._waiting: list[tuple[int, int, Unit[Any]]] = []

    def add(self, unit: Unit[Any], until_us: int) -> bool:
        """Adds a unit; False when too many wait: the unit must begin now."""
        if len(self._waiting) >= DELAYED_MAX:
            return False
        heapq.heappush(self._waiting, (until_us, unit.id, unit))
        return True

    def due(self, now_us: int) -> list[Unit[Any]]:
        """Removes and returns the units that are due, in the order of their times."""
        units = []
        while self._waiting and self._waiting[0][0] <= now_us:
            units.append(heapq.heappop(self._waiting)[2])
        return units

    def forget(self, unit_ids: frozenset[int]) -> None:
        """Drops these revoked units."""
        self._waiting = [entry for entry in self._waiting if entry[1] not in unit_ids]
        heapq.heapify(self._waiting)


def _written_again(
    query: Query, source: Source, headers: Headers, added: Headers, stage: StageName, now_us: int
) -> Output | None:
    """Returns the retry of a query, in the partition of its id; None: it would be too large."""
    key, value, own = _encoded(query, stage, now_us)
    origin = (ORIGIN_HEADER, f"{source.place}/{max(0, source.timestamp_ms)}".encode())
    earlier = tuple(pair for pair in headers if pair[0] not in RETRY_HEADERS)
    again = Output(
        topic=in_class_of(source.topic, RETRIES).name,
        key=key,
        value=value,
        headers=_with_own(earlier, (*own, *added, origin)),
    )
    return again if _fits(again) else None


def _encoded(query: Query, stage: StageName, now_us: int) -> tuple[bytes, bytes, Headers]:
    """Returns key, value and headers of a query that is written again.

    A reader prefers the event id to an id in the body.
    """
    value, headers = encode(
        query, event_id=query.query_id, source=f"carpool/{stage}", time_us=now_us
    )
    return query.query_id.encode(), value, headers


def _with_own(headers: Headers, own: Headers) -> Headers:
    """Returns the headers of a query, with `own` instead of those of the same names."""
    own_names = {name for name, _ in own}
    return own + tuple(pair for pair in headers if pair[0] not in own_names)


def _fits(output: Output) -> bool:
    """Whether the record is within the limits of topic and grouper: JSON is longer than text."""
    return len(output.value) <= SERVICE_QUERY_BYTES_MAX and fits(output, RETRIES)


def _text(headers: Headers, name: str) -> str:
    return (header(headers, name) or b"").decode(errors="replace")
