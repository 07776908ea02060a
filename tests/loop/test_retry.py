"""Retries of a failed query: its attempts, its deadline, its headers."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.kafka.records import Message, Output
from carpool.loop.retry import (
    DELAYED_MAX,
    FailureLimits,
    RetryDecision,
    RetryDelay,
    begin_us_of,
    decide_retry,
)
from carpool.loop.stage import Done
from carpool.origins import attempt_of, believed, index_wanted, later_attempt, origin_of, read_query
from schemas.codec import decode_query
from schemas.errors import RecordError
from schemas.headers import RETRY_HEADERS
from schemas.query import Query
from schemas.record import Headers, Source, header
from schemas.topics import QUERIES, QUERIES_BATCH, QUERIES_DEAD, RETRIES, RETRIES_BATCH
from tests.records import a_failure, a_message, a_query, a_unit, asked_query

NOW_US = 1_700_000_000_000_000
FIRST = Source(topic=QUERIES.name, partition=2, offset=99, timestamp_ms=1_699_999_999_000)
LIMITS = FailureLimits(attempts_max=3, retry_delay_us=1_000_000)
PLAIN: Headers = (("content-type", b"text/plain"),)
ENVELOPE = ("content-type", "ce_id")
failure = partial(a_failure, source=FIRST)


def decided(failed: Done, limits: FailureLimits = LIMITS, now_us: int = NOW_US) -> RetryDecision:
    failure = failed.failure
    assert failure is not None
    return decide_retry(
        failure, attempt=failure.attempt, limits=limits, group="carpool-searcher", now_us=now_us
    )


def arrived(output: Output, offset: int, received_us: int = NOW_US) -> Message:
    """The record as it is read again, in the partition that its key chooses."""
    return a_message(
        output.topic,
        offset,
        partition=7,
        key=output.key,
        value=output.value,
        headers=output.headers,
        received_us=received_us,
    )


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        (
            a_query("q-1", top_k=3, deadline=1_700_000_060_000, priority=-2),
            (
                ("traceparent", b"00-1-2-01"),
                ("x", None),
                ("rag-deadline-ms", b"1700000060000"),
            ),
        ),
        (a_query("q", None, vector=struct.pack("<3f", 0.1, 0.2, 0.3)), ()),
        (decode_query(b"Who was that?", PLAIN, FIRST), PLAIN),
        (
            a_query("q-1"),
            (
                ("content-type", b"application/cloudevents+json"),
                ("ce_id", b"other"),
                ("ce_myapp", b"kept"),
            ),
        ),
    ],
    ids=["every field", "its own vector", "an id made from its place", "an application's envelope"],
)
def test_a_retried_query_is_as_published_on_the_topic_of_retries(
    query: Query, headers: Headers
) -> None:
    (output,) = decided(failure(query, headers=headers)).outputs
    key = query.query_id.encode()
    assert (output.topic, output.partition, output.key) == (RETRIES.name, None, key)
    assert {pair for pair in headers if pair[0] not in ENVELOPE} <= set(output.headers)
    names = [name for name, _ in output.headers]
    assert len(set(names)) == len(names)
    assert header(output.headers, "rag-attempt") == b"2"
    assert header(output.headers, "rag-not-before-ms") == b"1700000001000"
    assert read_query(arrived(output, 120)) == query


def test_a_retried_query_stays_in_its_class() -> None:
    source = msgspec.structs.replace(FIRST, topic=QUERIES_BATCH.name)
    (output,) = decided(failure(source=source)).outputs
    assert output.topic == RETRIES_BATCH.name
    assert origin_of(arrived(output, 5)) == source


def test_every_attempt_names_the_record_that_the_client_published() -> None:
    first = decided(failure()).outputs[0]
    second = arrived(first, 120)
    assert origin_of(second) == FIRST
    again = decided(failure(headers=second.headers, source=origin_of(second))).outputs[0]
    assert (attempt_of(again.headers), origin_of(arrived(again, 150))) == (3, FIRST)
    names = [name for name, _ in again.headers]
    assert [names.count(name) for name in RETRY_HEADERS] == [1, 1, 1, 0]
    assert (later_attempt(()), later_attempt(second.headers)) == ("", "/2")


def test_a_query_that_is_planned_again_keeps_its_attempt_and_names_the_index() -> None:
    first = asked_query(source=FIRST, headers=(("x", b"1"),)).planned_again("v-2", NOW_US)
    assert first is not None
    message = arrived(first, 9)
    assert (attempt_of(message.headers), origin_of(message)) == (1, FIRST)
    assert (index_wanted(message), begin_us_of(message, LIMITS.retry_delay_us)) == ("v-2", 0)
    failed_later = decided(failure(headers=message.headers)).outputs[0]
    assert attempt_of(failed_later.headers) == 2
    assert header(failed_later.headers, "rag-index-version") is None, "it says nothing of that one"
    forged = believed(a_message(QUERIES.name, 9, headers=message.headers))
    assert index_wanted(forged) is None
    room = (("x", bytes(QUERIES.max_message_bytes - 300)),)
    assert asked_query(source=FIRST, headers=room).planned_again("v-2", 1) is None


def test_after_its_last_attempt_a_query_becomes_a_dead_letter() -> None:
    retry = (("rag-attempt", b"3"), ("rag-not-before-ms", b"5"), ("rag-origin", b"a/0/1/2"))
    result = decided(failure(headers=(*retry, ("x", b"1"))))
    assert result.outcome == "failed"
    (letter,) = result.outputs
    assert (letter.topic, letter.partition, letter.key) == (QUERIES_DEAD.name, 2, b"q-1")
    errors = {
        name.removeprefix("rag.errors."): value
        for name, value in letter.headers
        if name.startswith("rag.errors.")
    }
    assert errors["topic"] == QUERIES.name.encode()
    assert (errors["partition"], errors["offset"], errors["attempts"]) == (b"2", b"99", b"3")
    assert (errors["stage"], errors["group"]) == (b"searcher", b"carpool-searcher")
    assert errors["exception.class.name"] == b"QueryFailure.index_damaged"
    assert errors["exception.message"] == b"the disk is away"
    assert decode_query(letter.value, letter.headers, FIRST).text == "Who was that?"
    assert not {name for name, _ in letter.headers} & {*RETRY_HEADERS}, "no reader believes them"
    assert header(letter.headers, "rag-ignored-attempt") == b"3"
    assert header(letter.headers, "x") == b"1"


@pytest.mark.parametrize(
    ("failed", "limits"),
    [
        (failure(is_transient=False), LIMITS),
        (failure(), FailureLimits(attempts_max=1)),
        (failure(deadline_us=NOW_US + 900_000), LIMITS),
        (failure(deadline_us=NOW_US - 1), LIMITS),
        (failure(headers=(("x", bytes(QUERIES.max_message_bytes - 300)),)), LIMITS),
    ],
    ids=[
        "another attempt cannot succeed",
        "one attempt only",
        "the next one begins after the deadline",
        "the deadline has passed",
        "the headers leave no room",
    ],
)
def test_a_query_is_not_retried_when(failed: Done, limits: FailureLimits) -> None:
    assert decided(failed, limits).outcome == "failed"


@given(
    st.integers(1, 6),
    st.integers(0, 3_000_000),
    st.none() | st.integers(0, 8_000_000),
    st.lists(st.booleans(), max_size=8),
)
def test_any_sequence_of_failures_stays_within_attempts_and_deadline_and_ends_once(
    attempts_max: int, delay_us: int, time_left_us: int | None, transient: list[bool]
) -> None:
    deadline_us = None if time_left_us is None else NOW_US + time_left_us
    value = b'{"query_id": "q", "text": "x"}'
    message = replace(a_message(value=value, received_us=NOW_US), source=FIRST)
    limits = FailureLimits(attempts_max=attempts_max, retry_delay_us=delay_us)
    now_us, offset = NOW_US, FIRST.offset
    for attempt, is_transient in enumerate([*transient, False], start=1):
        assert attempt_of(message.headers) == attempt <= attempts_max
        assert origin_of(message) == FIRST
        failed = failure(
            read_query(message),
            headers=message.headers,
            deadline_us=deadline_us,
            is_transient=is_transient,
            source=origin_of(message),
        )
        result = decided(failed, limits, now_us)
        assert len(result.outputs) == 1
        if result.outcome == "failed":
            assert result.outputs[0].topic == QUERIES_DEAD.name
            return
        offset += 1
        message = arrived(result.outputs[0], offset, received_us=now_us)
        now_us = max(now_us, begin_us_of(message, delay_us))
        assert deadline_us is None or now_us <= deadline_us, "no attempt begins past the deadline"
    raise AssertionError("it never ended")


@pytest.mark.parametrize("topic", [QUERIES.name, QUERIES_BATCH.name])
def test_retry_headers_of_applications_are_ignored_and_renamed(topic: str) -> None:
    forged: Headers = (
        ("rag-attempt", b"2"),
        ("x", b"1"),
        ("rag-origin", b"rag.queries.v1/2/99/0"),
        ("rag-not-before-ms", b"9" * 18),
    )
    message = believed(a_message(topic, 120, partition=2, headers=forged))
    assert (attempt_of(message.headers), origin_of(message)) == (1, message.source)
    assert begin_us_of(message, LIMITS.retry_delay_us) == 0
    assert message.headers == (
        ("rag-ignored-attempt", b"2"),
        ("x", b"1"),
        ("rag-ignored-origin", b"rag.queries.v1/2/99/0"),
        ("rag-ignored-not-before-ms", b"9" * 18),
    )


@pytest.mark.parametrize(
    "origin",
    [
        None,
        b"",
        b"another/2/99/0",
        b"rag.retries.v1/2/99/0",
        b"\xff/2/9/0",
        b"rag.queries.v1/2/99",
        b"rag.queries.v1/2/99999999999999999999/0",
    ],
)
def test_a_retry_that_names_no_query_cannot_be_read(origin: bytes | None) -> None:
    headers = (("ce_id", b"q-1"), ("rag-origin", origin))
    message = a_message(RETRIES.name, 120, value=b'{"text": "Who?"}', headers=headers)
    with pytest.raises(RecordError, match="only services write this topic"):
        read_query(message)


@pytest.mark.parametrize(
    "text", [b"", b"x", b"-5", b"0", b"1.5", b"\xff", None, b"9" * 40, "٣".encode()]
)
def test_an_attempt_header_without_a_number_counts_as_the_first(text: bytes | None) -> None:
    assert attempt_of((("rag-attempt", text),)) == 1


def test_a_query_waits_at_most_one_retry_delay() -> None:
    delay_us = LIMITS.retry_delay_us
    message = arrived(decided(failure()).outputs[0], 120, received_us=NOW_US + 200_000)
    assert begin_us_of(message, delay_us) == NOW_US + delay_us
    forged = replace(message, headers=(("rag-attempt", b"2"), ("rag-not-before-ms", b"9" * 18)))
    assert begin_us_of(forged, delay_us) == forged.received_us + delay_us


def test_delayed_units_are_due_by_time_and_their_number_is_limited() -> None:
    delayed = RetryDelay()
    for id, until_us in ((1, 30), (2, 10), (3, 10), (4, 20), (5, 15)):
        assert delayed.add(a_unit(id, a_query()), until_us)
    assert [each.id for each in delayed.due(9)] == []
    assert [each.id for each in delayed.due(20)] == [2, 3, 5, 4]
    assert [each.id for each in delayed.due(100)] == [1]
    assert all(delayed.add(a_unit(id, a_query()), 10) for id in range(DELAYED_MAX))
    assert not delayed.add(a_unit(DELAYED_MAX, a_query()), 10)
    assert len(delayed.due(10)) == DELAYED_MAX
