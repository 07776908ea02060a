"""Retries of a failed query: its attempts, its deadline, its headers."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from carpool.errors import DeploymentError
from carpool.kafka.records import Message, Output
from carpool.loop.query_failures import FailureLimits, QueryFailures
from carpool.loop.retry import (
    DELAYED_MAX,
    RetryDecision,
    RetryDelay,
    RetryPolicy,
    attempt_of,
    begin_us_of,
    decide_retry,
    later_attempt,
    origin_of,
)
from carpool.loop.stage import Done, QueryFailure, Unit
from carpool.telemetry.metrics import Metrics
from schemas.codec import decode_query
from schemas.query import QUERY_BYTES_MAX, Query
from schemas.record import Headers, Source, header
from schemas.topics import ANSWERS, QUERIES, QUERIES_DEAD, RETRIEVALS
from tests.clocks import HandClock
from tests.records import a_query, a_unit

NOW_US = 1_700_000_000_000_000
FIRST = Source(topic=QUERIES.name, partition=2, offset=99, timestamp_ms=1_699_999_999_000)
POLICY = RetryPolicy(attempts_max=3, delay_us=1_000_000)


def failure(
    query: Query | None = None,
    *,
    headers: Headers = (),
    deadline_us: int | None = None,
    is_transient: bool = True,
    source: Source = FIRST,
) -> QueryFailure:
    return QueryFailure(
        query=query or Query(query_id="q-1", text="Who was that?", top_k=3),
        source=source,
        headers=headers,
        deadline_us=deadline_us,
        error_type="index_damaged",
        message="the disk is away",
        is_transient=is_transient,
    )


def decided(
    failed: QueryFailure, policy: RetryPolicy = POLICY, now_us: int = NOW_US
) -> RetryDecision:
    return decide_retry(
        failed, policy=policy, group="carpool-searcher", stage="searcher", now_us=now_us
    )


def arrived(output: Output, offset: int, received_us: int = NOW_US) -> Message:
    """The record as it is read again, at a later offset."""
    assert output.partition is not None
    source = Source(
        topic=output.topic,
        partition=output.partition,
        offset=offset,
        timestamp_ms=1_700_000_000_000,
    )
    return Message(
        source=source,
        key=output.key,
        value=output.value,
        headers=output.headers,
        received_us=received_us,
    )


def read_again(message: Message) -> Query:
    return decode_query(message.value, message.headers, message.source)


def test_a_retried_query_is_as_published_and_in_its_partition() -> None:
    query = Query(query_id="q-1", text="Who?", top_k=3, deadline=1_700_000_060_000, priority=-2)
    mine: Headers = (
        ("traceparent", b"00-1-2-01"),
        ("x", None),
        ("rag-deadline-ms", b"1700000060000"),
    )
    (output,) = decided(failure(query, headers=mine, deadline_us=1_700_000_060_000_000)).outputs
    assert (output.topic, output.partition, output.key) == (QUERIES.name, 2, b"q-1")
    assert set(mine) <= set(output.headers)
    assert header(output.headers, "rag-attempt") == b"2"
    assert header(output.headers, "rag-not-before-ms") == b"1700000001000"
    assert read_again(arrived(output, 120)) == query


def test_a_retried_query_keeps_its_own_vector() -> None:
    query = Query(query_id="q", vector=struct.pack("<3f", 0.1, 0.2, 0.3), embedding_model="m")
    (output,) = decided(failure(query)).outputs
    assert read_again(arrived(output, 120)) == query


def test_a_retried_query_keeps_an_id_made_from_its_place() -> None:
    query = decode_query(b"Who was that?", (("content-type", b"text/plain"),), FIRST)
    (output,) = decided(failure(query, headers=(("content-type", b"text/plain"),))).outputs
    assert read_again(arrived(output, 120)) == query


def test_a_retry_replaces_the_envelope_of_the_application() -> None:
    theirs: Headers = (
        ("content-type", b"application/cloudevents+json"),
        ("ce_id", b"other"),
        ("ce_myapp", b"kept"),
    )
    (output,) = decided(failure(headers=theirs)).outputs
    assert read_again(arrived(output, 120)).query_id == "q-1"
    assert header(output.headers, "ce_myapp") == b"kept"
    assert [name for name, _ in output.headers].count("content-type") == 1


def test_every_attempt_names_the_record_that_the_client_published() -> None:
    first = decided(failure()).outputs[0]
    second = arrived(first, 120)
    assert origin_of(second) == FIRST
    again = decided(failure(headers=second.headers, source=origin_of(second))).outputs[0]
    assert (attempt_of(again.headers), origin_of(arrived(again, 150))) == (3, FIRST)
    assert [name for name, _ in again.headers].count("rag-origin") == 1
    assert (later_attempt(()), later_attempt(second.headers)) == ("", "/2")


def test_after_its_last_attempt_a_query_becomes_a_dead_letter() -> None:
    result = decided(failure(headers=(("rag-attempt", b"3"), ("x", b"1"))))
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


@pytest.mark.parametrize(
    ("failed", "policy"),
    [
        (failure(is_transient=False), POLICY),
        (failure(), RetryPolicy(attempts_max=1)),
        (failure(deadline_us=NOW_US + 900_000), POLICY),
        (failure(deadline_us=NOW_US - 1), POLICY),
    ],
    ids=[
        "another attempt cannot succeed",
        "one attempt only",
        "the next one begins after the deadline",
        "the deadline has passed",
    ],
)
def test_a_query_is_not_retried_when(failed: QueryFailure, policy: RetryPolicy) -> None:
    assert decided(failed, policy).outcome == "failed"


def test_a_question_too_large_as_json_is_not_retried() -> None:
    query = decode_query(("é\x01" * 30_000).encode(), (("content-type", b"text/plain"),), FIRST)
    assert len((query.text or "").encode()) < QUERY_BYTES_MAX
    assert decided(failure(query)).outcome == "again"
    query = decode_query(("\x01" * 60_000).encode(), (("content-type", b"text/plain"),), FIRST)
    assert decided(failure(query)).outcome == "failed", "60 kB of text, 360 kB of JSON"


def test_a_query_whose_headers_leave_no_room_is_not_retried() -> None:
    large: Headers = (("x", bytes(QUERIES.max_message_bytes - 300)),)
    assert decided(failure(headers=large)).outcome == "failed"


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
    message = Message(
        source=FIRST,
        key=None,
        value=b'{"query_id": "q", "text": "x"}',
        headers=(),
        received_us=NOW_US,
    )
    policy = RetryPolicy(attempts_max=attempts_max, delay_us=delay_us)
    now_us, offset = NOW_US, FIRST.offset
    for attempt, is_transient in enumerate([*transient, False], start=1):
        assert attempt_of(message.headers) == attempt <= attempts_max
        assert origin_of(message) == FIRST
        failed = failure(
            read_again(message),
            headers=message.headers,
            deadline_us=deadline_us,
            is_transient=is_transient,
            source=origin_of(message),
        )
        result = decided(failed, policy, now_us)
        assert len(result.outputs) == 1
        if result.outcome == "failed":
            assert result.outputs[0].topic == QUERIES_DEAD.name
            return
        offset += 1
        message = arrived(result.outputs[0], offset, received_us=now_us)
        now_us = max(now_us, begin_us_of(message, policy))
        assert deadline_us is None or now_us <= deadline_us, "no attempt begins past the deadline"
    raise AssertionError("it never ended")


@pytest.mark.parametrize(
    "headers",
    [
        (("rag-origin", b"rag.queries.v1/2/99/0"),),
        (("rag-origin", b"rag.queries.v1/2/99/0"), ("rag-attempt", b"1")),
        (("rag-origin", b"rag.queries.v1/3/99/0"), ("rag-attempt", b"2")),
        (("rag-origin", b"another/2/99/0"), ("rag-attempt", b"2")),
        (("rag-origin", b"rag.queries.v1/2/120/0"), ("rag-attempt", b"2")),
        (("rag-origin", b"rag.queries.v1/2/121/0"), ("rag-attempt", b"2")),
        (("rag-origin", b"\xff/2/9/0"), ("rag-attempt", b"2")),
        (("rag-origin", None), ("rag-attempt", b"2")),
        (("rag-origin", b"rag.queries.v1/2/99999999999999999999/0"), ("rag-attempt", b"2")),
    ],
)
def test_an_origin_that_is_not_an_earlier_record_of_the_partition_is_ignored(
    headers: Headers,
) -> None:
    source = Source(topic=QUERIES.name, partition=2, offset=120)
    message = Message(source=source, key=None, value=b"x", headers=headers, received_us=NOW_US)
    assert origin_of(message) == source


@pytest.mark.parametrize(
    "text", [b"", b"x", b"-5", b"0", b"1.5", b"\xff", None, b"9" * 40, "٣".encode()]
)
def test_an_attempt_header_without_a_number_counts_as_the_first(text: bytes | None) -> None:
    assert attempt_of((("rag-attempt", text),)) == 1


def test_a_query_waits_at_most_one_retry_delay() -> None:
    message = arrived(decided(failure()).outputs[0], 120, received_us=NOW_US + 200_000)
    assert begin_us_of(message, POLICY) == NOW_US + 1_000_000
    forged = replace(message, headers=(("rag-attempt", b"2"), ("rag-not-before-ms", b"9" * 18)))
    assert begin_us_of(forged, POLICY) == forged.received_us + POLICY.delay_us
    assert begin_us_of(replace(message, headers=(("rag-not-before-ms", b"9" * 18),)), POLICY) == 0


def unit(id: int) -> Unit[Query]:
    return a_unit(id, a_query())


def test_delayed_units_are_due_in_the_order_of_their_times_unless_they_are_revoked() -> None:
    delayed = RetryDelay()
    for id, until_us in ((1, 30), (2, 10), (3, 10), (4, 20), (5, 15)):
        assert delayed.add(unit(id), until_us)
    delayed.forget(frozenset({5, 7}))
    assert [each.id for each in delayed.due(9)] == []
    assert [each.id for each in delayed.due(20)] == [2, 3, 4]
    assert [each.id for each in delayed.due(100)] == [1]


def test_the_number_of_delayed_units_is_limited() -> None:
    delayed = RetryDelay()
    assert all(delayed.add(unit(id), 10) for id in range(DELAYED_MAX))
    assert not delayed.add(unit(DELAYED_MAX), 10)
    assert len(delayed.due(10)) == DELAYED_MAX


def failures(failures_max: int = 3) -> tuple[QueryFailures, Metrics]:
    metrics = Metrics(CollectorRegistry())
    clock = HandClock(step_us=1)
    clock.time_us = NOW_US
    return QueryFailures(
        stage="searcher",
        group="carpool-searcher",
        limits=FailureLimits(retry=POLICY, in_a_row_max=failures_max),
        clock=clock,
        metrics=metrics,
    ), metrics


ANSWER = Output(topic=ANSWERS.name, key=b"q-1", value=b"{}")
RETRIEVAL = Output(topic=RETRIEVALS.name, key=b"q-1", value=b"{}")


def counted(metrics: Metrics, name: str) -> dict[str, float]:
    return {
        ",".join(sample.labels.values()): sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == name
    }


def test_a_failed_part_commits_with_its_retry_or_with_answer_and_letter() -> None:
    query_failures, metrics = failures()
    again = query_failures.resolve(Done(parts=((7, 1),), outputs=(ANSWER,), failure=failure()))
    assert (again.parts, [output.topic for output in again.outputs]) == (((7, 1),), [QUERIES.name])
    ended = query_failures.resolve(
        Done(parts=((7, 2),), outputs=(ANSWER,), failure=failure(is_transient=False))
    )
    assert [output.topic for output in ended.outputs] == [ANSWERS.name, QUERIES_DEAD.name]
    assert again.failure is None and ended.failure is None
    assert counted(metrics, "carpool_query_failures_total") == {
        "searcher,again": 1,
        "searcher,failed": 1,
    }
    assert counted(metrics, "carpool_answers_total") == {"searcher,failed": 1}


def test_a_burst_of_failures_stops_the_service_and_is_not_acknowledged() -> None:
    query_failures, _ = failures(failures_max=3)
    failed = Done(parts=((7, 1),), outputs=(ANSWER,), failure=failure())
    query_failures.resolve(failed)
    query_failures.resolve(failed)
    with pytest.raises(DeploymentError, match=r"3 queries failed in a row.*the disk is away"):
        query_failures.resolve(failed)
    with pytest.raises(DeploymentError, match="4 queries"):
        query_failures.resolve(failed)


def test_a_result_ends_a_row_of_failures_and_an_expired_answer_does_not() -> None:
    query_failures, _ = failures(failures_max=2)
    failed = Done(parts=((7, 1),), outputs=(ANSWER,), failure=failure())
    query_failures.resolve(failed)
    late = Done(parts=((8, 0),), outputs=(ANSWER,))
    assert query_failures.resolve(late) is late
    with pytest.raises(DeploymentError):
        query_failures.resolve(failed)
    query_failures.resolve(Done(parts=((9, 0),), outputs=(RETRIEVAL,)))
    query_failures.resolve(failed)
