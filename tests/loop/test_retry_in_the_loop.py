"""Failed queries through the loop: retried after a delay; a burst of failures stops the loop."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from carpool.endings import AskedQuery
from carpool.loop.loop import Loop
from carpool.loop.member_health import AWAY_US_MIN
from carpool.loop.priority.intake_queues import PriorityClass
from carpool.loop.retry import FailureLimits
from carpool.loop.stage import Done, Unit
from carpool.origins import origin_of
from schemas.query import Query
from schemas.record import header
from schemas.topics import QUERIES, QUERIES_DEAD, RETRIES, RETRIEVALS
from tests.loop.support import Bench, HandStage, turn

RETRIED = (PriorityClass(topic=RETRIES.name),)


def failed(unit: Unit[Any], answer: bytes = b"{}", **how: bool) -> Done:
    """The failed query of a unit, with a `failed` answer."""
    done = AskedQuery.of(unit, stage="grouper").failed(0, "llm_refused", "the disk is away", **how)
    return replace(done, outputs=(replace(done.outputs[0], value=answer),))


class FailingStage(HandStage):
    """Fails the units that a test names, with a `failed` answer."""

    def fail_units(self, *texts: str, is_transient: bool = True) -> None:
        assert self.sink is not None
        for text in texts:
            unit = self.unit(text)
            self.units.remove(unit)
            self.sink.done(failed(unit, text.encode(), is_transient=is_transient))


def started(*texts: str, partitions: int = 1) -> tuple[Bench, FailingStage, Loop[Query]]:
    """Starts a loop that has taken these queries in."""
    bench, stage = Bench(partitions), FailingStage()
    loop, _ = bench.loop(stage, extra_classes=RETRIED)
    bench.publish(*texts)
    turn(loop)
    return bench, stage, loop


def test_a_failed_query_is_retried_after_its_delay_while_others_go_on() -> None:
    bench, stage, loop = started("a")
    stage.fail_units("a")
    turn(loop)
    assert bench.committed()[0] == 1, "its first record is complete"
    assert bench.results(RETRIEVALS.name) == []
    bench.publish("b")
    turn(loop)
    assert [unit.record.text for unit in stage.units] == ["b"], "others do not wait for it"
    bench.wait(loop)
    again = stage.unit("a")
    assert (header(again.message.headers, "rag-attempt"), again.source.topic) == (
        b"2",
        RETRIES.name,
    )
    assert origin_of(again.message).place == f"{QUERIES.name}/0/0"
    stage.finish("a", "b")
    turn(loop)
    assert bench.results() == ["a/0", "b/0"]
    assert bench.committed() == (2, "")


def test_after_its_last_attempt_a_query_has_one_answer_and_one_letter() -> None:
    bench, stage, loop = started()
    bench.publish("a")
    for _ in range(3):
        turn(loop)
        stage.fail_units("a")
        turn(loop)
        bench.wait(loop)
    assert stage.units == []
    assert bench.results(RETRIEVALS.name) == ["a"]
    (letter,) = bench.broker.records(QUERIES_DEAD.name)
    assert header(letter.headers, "rag.errors.attempts") == b"3"
    assert header(letter.headers, "rag.errors.offset") == b"0", (
        "the record that the client published"
    )
    assert len(bench.broker.records(QUERIES.name)) == 1
    assert len(bench.broker.records(RETRIES.name)) == 2
    for outcome, times in (("again", 2), ("failed", 1)):
        labels = {"stage": "grouper", "outcome": outcome}
        assert bench.metric("query_failures_total", **labels) == times


def test_refused_queries_have_their_letters_and_never_stop_the_service() -> None:
    bench, stage = Bench(), FailingStage()
    loop, _ = bench.loop(stage)
    texts = [f"bad-{number}" for number in range(2 * FailureLimits().in_a_row_max)]
    bench.publish(*texts)
    turn(loop)
    assert stage.sink is not None
    for refused in list(stage.units):
        stage.sink.done(failed(refused, is_refusal=True))
    turn(loop)
    assert loop.failure is None and not loop.sink.health.is_away
    letters = bench.broker.records("rag.queries.v1.dlq")
    assert len(letters) == len(bench.results(RETRIEVALS.name)) == len(texts)
    assert header(letters[0].headers, "rag.errors.exception.class.name") == (
        b"QueryFailure.llm_refused"
    )


def with_a_sick_member(*texts: str) -> tuple[Bench, FailingStage, Loop[Query]]:
    """A member that left its group after 20 failures in a row."""
    bench, stage, loop = started(*texts)
    stage.fail_units(*texts, is_transient=False)
    turn(loop)
    bench.wait(loop)
    return bench, stage, loop


def test_a_member_that_only_fails_leaves_and_another_one_does_its_work() -> None:
    texts = [f"q{number}" for number in range(30)]
    bench, _, sick = with_a_sick_member(*texts)
    assert re.search(r"\d+ records failed in a row.*the disk is away", sick.not_ready()[0])
    assert sick.failure is None
    assert len(bench.broker.records(QUERIES_DEAD.name)) == 19
    assert bench.committed()[0] == 19, "the others are left in the topic"
    stage = HandStage()
    healthy, _ = bench.loop(stage)
    turn(healthy)
    assert [unit.record.text for unit in stage.units] == texts[19:]
    stage.finish(*texts[19:])
    turn(healthy)
    turn(sick)
    assert bench.results() == [f"{text}/0" for text in texts[19:]]


def test_a_sick_member_comes_back_after_a_pause_with_one_record_at_a_time() -> None:
    texts = [f"q{number}" for number in range(30)]
    bench, stage, loop = with_a_sick_member(*texts)
    assert not stage.units
    bench.wait(loop, AWAY_US_MIN)
    turn(loop)
    assert [unit.record.text for unit in stage.units] == ["q19"]
    stage.fail_units("q19", is_transient=False)
    turn(loop)
    bench.wait(loop, AWAY_US_MIN)
    assert not stage.units, "the second pause is twice as long"
    assert len(bench.broker.records(QUERIES_DEAD.name)) == 19
    bench.wait(loop, AWAY_US_MIN)
    turn(loop)
    assert [unit.record.text for unit in stage.units] == ["q19"]
    stage.finish("q19")
    stage.units.clear()
    turn(loop)
    assert [unit.record.text for unit in stage.units] == texts[20:], "one success ends the trial"
    bench.wait(loop)
    assert loop.not_ready() == ()


def test_an_exception_counts_once_and_costs_a_try_even_on_trial_but_no_finished_part() -> None:
    texts = [f"q{number}" for number in range(30)]
    bench, stage, loop = with_a_sick_member(*texts)
    bench.wait(loop, AWAY_US_MIN)
    turn(loop)
    loop.sink.charge(stage.unit("q19").owed, ZeroDivisionError("on trial"))
    stage.units.clear()
    turn(loop)
    assert len(bench.broker.records(RETRIES.name)) == 1
    bench.wait(loop, 2 * AWAY_US_MIN)
    turn(loop)
    stage.finish("q20")
    loop.sink.charge(stage.unit("q20").owed, ZeroDivisionError("after its result"))
    stage.units.clear()
    turn(loop)
    assert len(bench.results()) == 1
    bench.publish(*(f"more {number}" for number in range(30)))
    turn(loop)
    every = tuple(part for unit in stage.units for part in unit.owed)
    loop.sink.charge(every, ZeroDivisionError("of a batch"))
    turn(loop)
    bench.wait(loop)
    assert loop.not_ready() == ()
    assert len(bench.broker.records(RETRIES.name)) == 1 + len(every)


def test_a_result_ends_a_row_of_failures_and_an_answer_does_not() -> None:
    texts = [f"q{number}" for number in range(40)]
    _, stage, loop = started(*texts, "late", "good")
    stage.fail_units(*texts[:19])
    stage.finish("good")
    stage.fail_units(*texts[19:38])
    loop.sink.done(AskedQuery.of(stage.unit("late"), stage="grouper").expired(0, "its plan"))
    turn(loop)
    assert loop.positions.assigned
    stage.fail_units(texts[38])
    turn(loop)
    assert not loop.positions.assigned, "it has left its group"


def test_a_delayed_query_is_forgotten_when_its_partition_is_revoked() -> None:
    bench, stage, loop = started("a", partitions=2)
    stage.fail_units("a")
    turn(loop)
    other = HandStage()
    second, consumer = bench.loop(other, extra_classes=RETRIED)
    bench.broker.assign("carpool-test", dict.fromkeys(range(4), consumer))
    turn(loop, 2)
    turn(second, 2)
    bench.clock.sleep(2_000_000)
    turn(loop)
    turn(second)
    assert stage.units == []
    assert [unit.record.text for unit in other.units] == ["a"]
