"""The loop with two priority classes: turns, limits, and no loss when partitions move."""

from __future__ import annotations

from collections import Counter

import pytest

from carpool.endings import AskedQuery
from schemas.topics import QUERIES, QUERIES_BATCH, RETRIEVALS, RETRIEVALS_BATCH
from tests.loop.support import HandStage, TwoClasses, turn

BATCH_MAX = 20


def taken(stage: HandStage) -> Counter[str]:
    return Counter(unit.source.topic for unit in stage.units)


def end(stage: HandStage, count: int) -> None:
    """Completes the oldest units."""
    stage.finish(*(unit.record.text or "" for unit in stage.units[:count]))
    stage.units = stage.units[count:]


def test_an_urgent_query_is_taken_in_before_hundreds_of_earlier_batch_queries() -> None:
    bench, stage = TwoClasses(), HandStage(credit=30)
    loop, _ = bench.both(stage, BATCH_MAX)
    bench.publish_batch(300)
    turn(loop)
    assert taken(stage) == {QUERIES_BATCH.name: BATCH_MAX}, "its limit, although there is room"
    bench.publish("urgent")
    turn(loop)
    assert taken(stage)[QUERIES.name] == 1


def test_urgent_queries_that_arrive_without_credit_go_first_when_there_is_credit() -> None:
    bench, stage = TwoClasses(), HandStage(credit=BATCH_MAX)
    loop, _ = bench.both(stage, BATCH_MAX)
    bench.publish_batch(300)
    turn(loop)
    bench.publish(*(f"urgent {number}" for number in range(9)))
    turn(loop, times=9)
    end(stage, 12)
    turn(loop)
    assert taken(stage)[QUERIES.name] == 9, "of twelve places, batch gets less than a turn"


def test_the_intake_stops_while_too_much_finished_work_waits_for_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("carpool.loop.taking.FINISHED_BYTES_MAX", 10)
    bench, stage = TwoClasses(), HandStage(credit=30)
    loop, _ = bench.both(stage, BATCH_MAX)
    bench.publish("one", "two")
    loop.step()
    end(stage, 2)
    assert loop.in_flight.finished_bytes >= 10, "the delivery has not run"
    assert loop.in_flight.unfinished_parts[QUERIES.name] == 0, "the stage has no unit"
    bench.publish("three")
    loop.step()
    assert stage.units == []
    turn(loop)
    assert loop.in_flight.finished_bytes == 0
    assert [unit.record.text for unit in stage.units] == ["three"]


def test_an_answer_before_the_generator_goes_through_it_in_the_class_of_its_query() -> None:
    bench, stage = TwoClasses(), HandStage()
    loop, _ = bench.both(stage)
    bench.publish("urgent")
    bench.publish_batch(1)
    turn(loop)
    assert stage.sink is not None
    for unit in stage.units:
        stage.sink.done(AskedQuery.of(unit, stage="grouper").expired(0, "its plan"))
    turn(loop)
    keys = {unit.source.topic: unit.record.query_id.encode() for unit in stage.units}
    for asked, topic in ((QUERIES, RETRIEVALS), (QUERIES_BATCH, RETRIEVALS_BATCH)):
        assert [each.key for each in bench.broker.records(topic.name)] == [keys[asked.name]]
    assert bench.metric("answers_total", stage="grouper", status="expired") == 2
