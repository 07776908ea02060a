"""Equal prompts behind the real loop: one generation, and none that serves another tenant."""

from __future__ import annotations

from collections import Counter

from tests.generator.stage import unit
from tests.generator.test_answer_dedup_through_the_loop import (
    Service,
    answers,
    committed,
    delivery,
    make_broker,
    publish,
)

__all__ = ["delivery"]


def test_equal_prompts_of_different_ids_are_generated_once(delivery: str) -> None:
    broker, units = make_broker(), [unit("why?") for _ in range(20)]
    publish(broker, *units)
    service = Service(broker, delivery)
    service.turn(lambda: committed(broker) == len(units))
    service.crash()
    found = answers(broker)
    assert Counter(each.source for each in found) == {one.record.source: 1 for one in units}
    assert {each.status for each in found} == {"ok"}
    service.stage.check_integrity()
    assert len(service.engine.requests) == 1
    assert Counter(each.replayed for each in found) == {False: 1, True: 19}


def test_a_successor_gives_answers_that_its_predecessor_generated(delivery: str) -> None:
    broker = make_broker()
    publish(broker, unit("why?"))
    first = Service(broker, delivery)
    first.turn(lambda: committed(broker) == 1)
    first.crash()
    publish(broker, *(unit("why?") for _ in range(6)))
    second = Service(broker, delivery)
    second.turn(lambda: committed(broker) == 7)
    second.crash()
    assert second.engine.requests == []
    assert Counter(each.replayed for each in answers(broker)) == {False: 1, True: 6}


def test_the_end_of_a_service_waits_for_followers_too(delivery: str) -> None:
    broker = make_broker()
    publish(broker, *(unit("why?") for _ in range(6)))
    service = Service(broker, delivery)
    service.turn(lambda: service.loop.in_flight.units + committed(broker) == 6)
    service.loop.drain(service.loop.last_step_us + 30_000_000)
    service.loop.close()
    assert committed(broker) == 6
    assert len(service.engine.requests) == 1
