"""Queries that wait for documents: how many, how long, and how each ends."""

from __future__ import annotations

from carpool.loop.stage import Unit
from schemas.answer import Answer
from schemas.codec import decode
from schemas.group import Group
from searcher.bounds import WAIT_US, WAITING_MAX, BoundWaits, is_reached, refused, stale
from tests.records import a_group, a_grouped_query, a_message, a_query, a_unit

NOW_US = 1_000_000
BOUND = {0: 7, 2: 3}


def waiting(number: int, deadline_us: int | None = None) -> Unit[Group]:
    query = a_query(f"q-{number}", bound=BOUND)
    grouped = a_grouped_query(query, deadline_us=deadline_us)
    return a_unit(number, a_group(grouped), a_message())


def test_a_bound_is_reached_when_every_partition_is_there() -> None:
    assert is_reached({}, {}) and is_reached(BOUND, {0: 7, 1: 0, 2: 9})
    assert not is_reached(BOUND, {0: 7}) and not is_reached(BOUND, {0: 6, 2: 3})
    waits = BoundWaits()
    assert waits.add(waiting(1), 0, BOUND, NOW_US) and waits.add(waiting(2), 0, {1: 1}, NOW_US)
    assert not waits.reached({0: 7})
    assert [each.unit.id for each in waits.reached({0: 7, 2: 3})] == [1]
    assert not waits.reached({0: 7, 2: 3}) and waits


def test_one_too_many_does_not_wait_and_a_deadline_ends_a_wait_earlier() -> None:
    waits = BoundWaits()
    for number in range(WAITING_MAX):
        assert waits.add(waiting(number, NOW_US + 5 if number == 3 else None), 0, BOUND, NOW_US)
    assert not waits.add(waiting(99), 0, BOUND, NOW_US)
    assert [each.unit.id for each in waits.late(NOW_US + 5)] == [3]
    assert waits.add(waiting(99), 0, BOUND, NOW_US)
    waits.forget(frozenset({0, 1}))
    assert len(waits.late(NOW_US + WAIT_US)) == WAITING_MAX - 2 and not waits


def test_what_no_document_has_is_refused() -> None:
    waits = BoundWaits()
    waits.add(waiting(1), 0, {0: 10}, NOW_US)
    waits.add(waiting(2), 0, {0: 9}, NOW_US)
    waits.add(waiting(3), 0, {5: 0}, NOW_US)
    assert [each.unit.id for each in waits.beyond({0: 10})] == [1, 3]


def test_the_answer_says_what_was_missing_and_whether_to_ask_again() -> None:
    unit = waiting(1)
    done = stale(unit, 0, {0: 9, 2: 1}, "the indexer is behind", NOW_US)
    answer = decode(Answer, done.outputs[0].value, done.outputs[0].headers)
    assert answer.error is not None and answer.error.type == "stale" and answer.error.retryable
    assert "partition 2 up to offset 3" in answer.error.message
    assert "those up to 1: the indexer is behind" in answer.error.message
    done = refused(unit, 0, "there is no such document", NOW_US)
    answer = decode(Answer, done.outputs[0].value, done.outputs[0].headers)
    assert answer.error is not None and not answer.error.retryable
