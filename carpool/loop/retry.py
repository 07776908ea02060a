"""A query that failed through no fault of its own: it goes round again as a new record of its
topic, or ends. Decisions only.

The query is the unit of retry. It re-enters the topic that it was published to, in its partition,
under its id, with its first deadline and three headers: which attempt this is, when to begin, and
which record its asker published (`rag-origin`), so that every answer names that one. The new record
owes the one terminal answer, the old one owes none.
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

HELD_MAX = 1_000
"""Queries that wait for their time at once; beyond it the next is begun early, since what waits
holds back commits.
"""
ORIGIN = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,9})/([0-9]{1,18})/([0-9]{1,15})")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often a query is begun (1: never again), and how long after a failure it is begun again,
    microseconds.
    """

    attempts_max: int = 3
    delay_us: int = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What becomes of a failed query: it goes round again, as the record in `outputs`, or has
    failed, and they are its letter.
    """

    outcome: Literal["again", "failed"]
    outputs: tuple[Output, ...]


def after_failure(
    failure: QueryFailure,
    *,
    policy: RetryPolicy,
    group: str,
    stage: StageName,
    now_us: int,
    connect_names: bool = False,
) -> Verdict:
    """Decides about a failed query: again while attempts are left and the next begins before its
    deadline, else it has failed.
    """
    attempt = attempt_of(failure.headers)
    begin_us = now_us + policy.delay_us
    has_time = failure.deadline_us is None or begin_us < failure.deadline_us
    if failure.is_transient and attempt < policy.attempts_max and has_time:
        again = reentry(failure, begin_us=begin_us, stage=stage, now_us=now_us)
        if _fits(again):
            return Verdict(outcome="again", outputs=(again,))
    letter = _letter(
        failure, attempt, group=group, stage=stage, now_us=now_us, connect_names=connect_names
    )
    return Verdict(outcome="failed", outputs=(letter,))


def reentry(failure: QueryFailure, *, begin_us: int, stage: StageName, now_us: int) -> Output:
    """Returns the record that sends a query round again, to be begun at `begin_us`."""
    source, query_id = failure.source, failure.query.query_id
    value, ours = _encoded(failure.query, stage, now_us)
    ours += (
        (ATTEMPT_HEADER, str(attempt_of(failure.headers) + 1).encode()),
        (NOT_BEFORE_HEADER, str(-(-begin_us // 1_000)).encode()),
        (ORIGIN_HEADER, _origin_text(source).encode()),
    )
    set_by_us = {name for name, _ in ours}
    theirs = tuple(pair for pair in failure.headers if pair[0] not in set_by_us)
    # To the partition of the first record, so that `origin_of` can tell a re-entry from a claim.
    return Output(
        topic=source.topic,
        key=query_id.encode(),
        value=value,
        headers=ours + theirs,
        partition=source.partition,
    )


def attempt_of(headers: Headers) -> int:
    """Returns which attempt a query is at, from 1; what is no number counts as the first."""
    text = _text(headers, ATTEMPT_HEADER)
    return max(1, int(text)) if WHOLE_NUMBER.fullmatch(text) else 1


def later_attempt(headers: Headers) -> str:
    """Returns what tells the ids of results of a further attempt from those of the first: nothing
    for the first.
    """
    attempt = attempt_of(headers)
    return f"/{attempt}" if attempt > 1 else ""


def origin_of(message: Message) -> Source:
    """Returns the record that the asker of a query published: the record itself, or the one that it
    is a further attempt of.

    Headers can be anyone's, so one that names another topic, another partition or a later record is
    not believed.
    """
    found = ORIGIN.fullmatch(_text(message.headers, ORIGIN_HEADER))
    if found is None or attempt_of(message.headers) < 2:
        return message.source
    topic, partition, offset, timestamp_ms = found.groups()
    origin = Source(
        topic=topic, partition=int(partition), offset=int(offset), timestamp_ms=int(timestamp_ms)
    )
    is_ours = (origin.topic, origin.partition) == (message.source.topic, message.source.partition)
    return origin if is_ours and origin.offset < message.source.offset else message.source


def begin_us_of(message: Message, policy: RetryPolicy) -> int:
    """Returns when to begin a query, epoch microseconds: at once (0), or as its header says, at
    most a step after it came.
    """
    text = _text(message.headers, NOT_BEFORE_HEADER)
    if attempt_of(message.headers) < 2 or not WHOLE_NUMBER.fullmatch(text):
        return 0
    return min(int(text) * 1_000, message.received_us + policy.delay_us)


class RetryDelay:
    """Units that wait for their time: later records of their partition go on meanwhile. Not
    thread-safe.

    Each call costs O(log n), `forget` O(n); at most `HELD_MAX` wait.
    """

    def __init__(self) -> None:
        self._waiting: list[
            tuple[int, int, Unit[Any]]
        ] = []  # a heap by time; ids are unique, so units are never compared

    def hold(self, unit: Unit[Any], until_us: int) -> bool:
        """Takes a unit; False when too many wait, and this one is to be begun now."""
        if len(self._waiting) >= HELD_MAX:
            return False
        heapq.heappush(self._waiting, (until_us, unit.id, unit))
        return True

    def due(self, now_us: int) -> list[Unit[Any]]:
        """Returns the units whose time has come, in its order, and lets go of them."""
        units = []
        while self._waiting and self._waiting[0][0] <= now_us:
            units.append(heapq.heappop(self._waiting)[2])
        return units

    def forget(self, unit_ids: frozenset[int]) -> None:
        """Drops these units: they are somebody else's now."""
        self._waiting = [entry for entry in self._waiting if entry[1] not in unit_ids]
        heapq.heapify(self._waiting)

    @property
    def next_us(self) -> int | None:
        """When the next is due, or None."""
        return self._waiting[0][0] if self._waiting else None


def _letter(
    failure: QueryFailure,
    attempt: int,
    *,
    group: str,
    stage: StageName,
    now_us: int,
    connect_names: bool,
) -> Output:
    """The query as it travelled: its raw bytes stayed where it was read. Its own headers, with ours
    of the same name replaced.
    """
    value, ours = _encoded(failure.query, stage, now_us)
    set_by_us = {name for name, _ in ours}
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
        headers=ours + tuple(pair for pair in failure.headers if pair[0] not in set_by_us),
        reason=reason,
        connect_names=connect_names,
    )


def _encoded(query: Query, stage: StageName, now_us: int) -> tuple[bytes, Headers]:
    # The event is the question: its id is the query's, which wins over what the body says when it
    # is read again.
    return encode(query, event_id=query.query_id, source=f"carpool/{stage}", time_us=now_us)


def _fits(output: Output) -> bool:
    """Whether the topic of queries takes this record, and the grouper this query: plain text grows
    when it becomes JSON.
    """
    size = record_bytes(output.key, output.value, output.headers)
    return len(output.value) <= QUERY_BYTES_MAX and size <= QUERIES.max_message_bytes


def _origin_text(source: Source) -> str:
    return f"{source.place}/{max(0, source.timestamp_ms)}"


def _text(headers: Headers, name: str) -> str:
    return (header(headers, name) or b"").decode(errors="replace")
