"""Withdrawn questions: wherever a query is, it ends as `cancelled`, unless it has its answer."""

from __future__ import annotations

from collections import Counter

import pytest

from carpool.clock import SystemClock
from carpool.loop.stage import Unit
from generator.plan.cancels import Cancels
from generator.settings import GeneratorSettings
from schemas.cancel import Cancel
from schemas.codec import encode
from schemas.record import Source
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, CANCELS, PARTIAL_ANSWERS, QUERIES_DEAD, RETRIEVALS
from tests.clocks import NOW_US
from tests.generator.memory_llm import MemoryLlm, Reply
from tests.generator.stage import running, unit
from tests.generator.test_answer_dedup_through_the_loop import (
    Service,
    answers,
    committed,
    delivery,
    publish,
)
from tests.memory_broker.broker import MemoryBroker
from tests.memory_broker.table_log import MemoryCancelsLog
from tests.records import a_source

__all__ = ["delivery"]


def test_a_cancel_of_a_record_withdraws_that_record_only() -> None:
    cancels = Cancels(cancels_max=100)
    cancels.read(Cancel(query_id="q", source=a_source(1)), 5)
    assert cancels.is_withdrawn("q", a_source(1, timestamp_ms=99)), "its timestamp is not known"
    assert not cancels.is_withdrawn("q", a_source(2))
    assert not cancels.is_withdrawn("other", a_source(1))


def test_a_cancel_of_an_id_withdraws_what_was_published_before_it() -> None:
    cancels = Cancels(cancels_max=100)
    cancels.read(Cancel(query_id="q"), 50)
    cancels.read(Cancel(query_id="q"), 40)
    assert cancels.is_withdrawn("q", a_source(1, timestamp_ms=50))
    assert not cancels.is_withdrawn("q", a_source(2, timestamp_ms=51)), "it was asked again"
    assert not cancels.is_withdrawn("other", a_source(1, timestamp_ms=1))


def test_a_cancelled_request_frees_its_place_at_the_server() -> None:
    engine = MemoryLlm(script=[Reply(hangs_after=1)])
    with running(engine, GeneratorSettings(concurrency=1)) as run:
        first, second, third = unit("a"), unit("b"), unit("c")
        run.offer(first)
        run.wait(lambda: len(engine.requests) == 1)
        run.offer(second, third)
        run.stage.cancel(second.id)
        run.stage.cancel(first.id)
        run.stage.cancel(12_345_678)
        found = {each.query_id: each for each in run.wait_for_answers(3)}
        run.stage.cancel(third.id)
    assert engine.cancelled == [first.record.source.place]
    assert [found[f"q-{one.id}"].status for one in (first, second, third)] == [
        "cancelled",
        "cancelled",
        "ok",
    ]
    error = found[f"q-{first.id}"].error
    assert error is not None and (error.type, error.retryable) == ("cancelled", False)
    assert run.metric("llm_requests_total", outcome="cancelled") == 1


class Rig:
    """A service behind the real loop that follows cancels. Its server hangs on the first prompt."""

    def __init__(self, delivery: str) -> None:
        names = (RETRIEVALS, ANSWERS, PARTIAL_ANSWERS, QUERIES_DEAD, CANCELS)
        self.broker = MemoryBroker(SystemClock(), {topic.name: 2 for topic in names})
        self.delivery = delivery

    def start(self) -> Service:
        log = MemoryCancelsLog(self.broker)
        self.service = Service(
            self.broker, self.delivery, cancels=log, settings=GeneratorSettings(concurrency=1)
        )
        return self.service

    def cancel(self, query_id: str, source: Source | None = None) -> None:
        value, headers = encode(
            Cancel(query_id=query_id, source=source), event_id="c", source="test", time_us=NOW_US
        )
        self.broker.append(CANCELS.name, value, key=query_id.encode(), headers=headers)

    def cancel_record(self, one: Unit[Retrieval]) -> None:
        self.cancel(one.record.query.query_id, one.record.source)

    def ends(self, count: int) -> dict[str, str]:
        """The status of each query, once `count` records are committed."""
        self.service.turn(lambda: committed(self.broker) == count)
        self.service.stage.check_integrity()
        found = answers(self.broker)
        assert set(Counter(each.source for each in found).values()) == {1}
        return {each.query_id: each.status for each in found}


@pytest.fixture
def rig(delivery: str) -> Rig:
    return Rig(delivery)


def id_of(one: Unit[Retrieval]) -> str:
    return one.record.query.query_id


def test_a_query_that_is_generated_one_that_waits_and_a_follower_end_as_cancelled(
    rig: Rig,
) -> None:
    first, waits, follows, stays = unit("a"), unit("b"), unit("a"), unit("a")
    publish(rig.broker, first, waits, follows, stays)
    service = rig.start()
    service.engine._replies.extend(
        [Reply(hangs_after=1)] * 4
    )  # each may be sent before its cancel is read
    service.turn(lambda: service.loop.in_flight.units == 4 and bool(service.engine.requests))
    for one in (first, waits, follows):
        rig.cancel_record(one)
    service.turn(lambda: len(answers(rig.broker)) == 3)
    service.turn(lambda: len(service.engine.requests) >= 2)
    rig.cancel("unknown")
    rig.cancel_record(stays)
    assert rig.ends(4) == dict.fromkeys(map(id_of, (first, waits, follows, stays)), "cancelled")
    assert len(service.engine.cancelled) >= 1
    service.crash()


def test_a_query_that_was_withdrawn_before_it_came_is_not_generated(rig: Rig) -> None:
    withdrawn, other = unit("a"), unit("b")
    rig.cancel_record(withdrawn)
    service = rig.start()
    service.turn(lambda: _has_read(service, withdrawn))
    publish(rig.broker, withdrawn, other)
    assert rig.ends(2) == {id_of(withdrawn): "cancelled", id_of(other): "ok"}
    assert len(service.engine.requests) == 1
    service.crash()


def test_a_cancel_that_comes_after_the_answer_changes_nothing(rig: Rig) -> None:
    one = unit("a")
    publish(rig.broker, one)
    service = rig.start()
    assert rig.ends(1) == {id_of(one): "ok"}
    again = unit("a", query={"query_id": id_of(one)})
    for each in (one, again):
        rig.cancel_record(each)
        service.turn(lambda each=each: _has_read(service, each))  # type: ignore[misc]
    publish(rig.broker, again)
    assert rig.ends(2) == {id_of(one): "ok"}
    assert [each.replayed for each in answers(rig.broker)] == [False, True]
    service.crash()


def _has_read(service: Service, one: Unit[Retrieval]) -> bool:
    return service.stage._cancels.is_withdrawn(id_of(one), one.record.source)
