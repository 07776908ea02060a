"""Decides whether a failed query is retried as a new record of its topic, or ends. Pure.

The query is the unit of retry. The new record has the same topic, partition, id and deadline, and
three headers: the attempt, when to begin, and the record that the client published (`rag-origin`),
so that every answer names that record. The new record owes the one terminal answer; the old record
owes none.
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from typing import Any, Literal

from carpool.dead_letters.letter import Reason, make_letter
from carpool.kafka.records import Message, Output
from carpool.kafka.sizes import record_bytes
from carpool.loop.stage import QueryFailure, Unit
from schemas.answer import Stage as StageName
from schemas.codec import WHOLE_NUMBER, encode
from schemas.headers import ATTEMPT_HEADER, NOT_BEFORE_HEADER, ORIGIN_HEADER
from schemas.query import QUERY_BYTES_MAX, Query
from schemas.record import Headers, Source, header
from schemas.topics import QUERIES

DELAYED_MAX = 1_000
"""Queries that wait for their retry, at most; beyond it a retry starts immediately.

A waiting query delays the commit of later records of its partition.
"""
ORIGIN = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,9})/([0-9]{1,18})/([0-9]{1,15})")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Attempts of a query (1: no retry), and the delay after a failure."""

    attempts_max: int = 3
    delay_us: int = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryDecision:
    """`outputs`: the record that retries the query ("again"), or its dead letter ("failed")."""

    outcome: Literal["again", "failed"]
    outputs: tuple[Output, ...]


def decide_retry(
    failure: QueryFailure,
    *,
    policy: RetryPolicy,
    group: str,
    stage: StageName,
    now_us: int,
    connect_names: bool = False,
) -> RetryDecision:
    """Retries while attempts are left and the next one begins before the deadline."""
    attempt = attempt_of(failure.headers)
    begin_us = now_us + policy.delay_us
    has_time = failure.deadline_us is None or begin_us < failure.deadline_us
    if failure.is_transient and attempt < policy.attempts_max and has_time:
        again = retry_record(failure, begin_us=begin_us, stage=stage, now_us=now_us)
        if _fits(again):
            return RetryDecision(outcome="again", outputs=(again,))
    letter = _letter(
        failure, attempt, group=group, stage=stage, now_us=now_us, connect_names=connect_names
    )
    return RetryDecision(outcome="failed", outputs=(letter,))


def retry_record(failure: QueryFailure, *, begin_us: int, stage: StageName, now_us: int) -> Output:
    """Returns the record that retries a query, to begin at `begin_us`."""
    source, query_id = failure.source, failure.query.query_id
    value, own = _encoded(failure.query, stage, now_us)
    own += (
        (ATTEMPT_HEADER, str(attempt_of(failure.headers) + 1).encode()),
        (NOT_BEFORE_HEADER, str(-(-begin_us // 1_000)).encode()),
        (ORIGIN_HEADER, _origin_text(source).encode()),
    )
    own_names = {name for name, _ in own}
    theirs = tuple(pair for pair in failure.headers if pair[0] not in own_names)
    # In the partition of the first record, so that `origin_of` can check the header.
    return Output(
        topic=source.topic,
        key=query_id.encode(),
        value=value,
        headers=own + theirs,
        partition=source.partition,
    )


def attempt_of(headers: Headers) -> int:
    """Returns the attempt that the headers name, from 1; 1 where they name no number."""
    text = _text(headers, ATTEMPT_HEADER)
    return max(1, int(text)) if WHOLE_NUMBER.fullmatch(text) else 1


def later_attempt(headers: Headers) -> str:
    """Returns a suffix for ids of results of a retry; empty for the first attempt."""
    attempt = attempt_of(headers)
    return f"/{attempt}" if attempt > 1 else ""


def origin_of(message: Message) -> Source:
    """Returns the record that the client published: this record, or the one that it retries.

    A client may write the header too, so a header that names another topic, another partition or a
    later record is ignored.
    """
    found = ORIGIN.fullmatch(_text(message.headers, ORIGIN_HEADER))
    if found is None or attempt_of(message.headers) < 2:
        return message.source
    topic, partition, offset, timestamp_ms = found.groups()
    origin = Source(
        topic=topic, partition=int(partition), offset=int(offset), timestamp_ms=int(timestamp_ms)
    )
    is_same_place = (origin.topic, origin.partition) == (
        message.source.topic,
        message.source.partition,
    )
    return origin if is_same_place and origin.offset < message.source.offset else message.source


def begin_us_of(message: Message, policy: RetryPolicy) -> int:
    """Returns when to begin a query, epoch microseconds; 0: now.

    The time is from its header, and at most one retry delay after the record arrived.
    """
    text = _text(message.headers, NOT_BEFORE_HEADER)
    if attempt_of(message.headers) < 2 or not WHOLE_NUMBER.fullmatch(text):
        return 0
    return min(int(text) * 1_000, message.received_us + policy.delay_us)


class RetryDelay:
    """Units that wait for their retry, while later records of their partition are processed.

    Not thread-safe. At most `DELAYED_MAX` wait. Each call costs O(log n), `forget` O(n).
    """

    def __init__(self) -> None:
        self._waiting: list[
            tuple[int, int, Unit[Any]]
        ] = []  # a heap by time; ids are unique, so units are never compared

    def add(self, unit: Unit[Any], until_us: int) -> bool:
        """Takes a unit; False when too many wait: then it must begin now."""
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
        """Drops these units: they are revoked."""
        self._waiting = [entry for entry in self._waiting if entry[1] not in unit_ids]
        heapq.heapify(self._waiting)


def _letter(
    failure: QueryFailure,
    attempt: int,
    *,
    group: str,
    stage: StageName,
    now_us: int,
    connect_names: bool,
) -> Output:
    """Returns the dead letter: the query encoded again, with its own headers."""
    value, own = _encoded(failure.query, stage, now_us)
    own_names = {name for name, _ in own}
    reason = Reason(
        group=group,
        stage=stage,
        attempts=attempt,
        class_name=f"{QueryFailure.__name__}.{failure.error_type}",
        message=failure.message,
    )
    return make_letter(
        source=failure.source,
        key=failure.query.query_id.encode(),
        value=value,
        headers=own + tuple(pair for pair in failure.headers if pair[0] not in own_names),
        reason=reason,
        connect_names=connect_names,
    )


def _encoded(query: Query, stage: StageName, now_us: int) -> tuple[bytes, Headers]:
    # A reader prefers the event id to an id in the body.
    return encode(query, event_id=query.query_id, source=f"carpool/{stage}", time_us=now_us)


def _fits(output: Output) -> bool:
    """Whether the record is within the limits of topic and grouper: JSON is longer than text."""
    size = record_bytes(output.key, output.value, output.headers)
    return len(output.value) <= QUERY_BYTES_MAX and size <= QUERIES.max_message_bytes


def _origin_text(source: Source) -> str:
    return f"{source.place}/{max(0, source.timestamp_ms)}"


def _text(headers: Headers, name: str) -> str:
    return (header(headers, name) or b"").decode(errors="replace")
