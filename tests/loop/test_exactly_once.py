"""Transactions: aborts, lost replies, fences, revocations, and metadata that is full."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.errors import AbortedError, FencedError, RetryableError
from carpool.kafka.clients import Membership, Position
from carpool.kafka.commit_metadata import METADATA_BYTES_MAX, head_of
from carpool.kafka.fencing import claims
from carpool.kafka.records import TopicPartition
from carpool.loop.delivery.exactly_once import ABORTING_US_MAX, ABORTS_MIN, CALL_US_MAX
from carpool.loop.loop import Loop
from carpool.loop.positions import RUNS_STOP_BYTES
from carpool.loop.stage import Done
from schemas.query import Query
from schemas.topics import QUERIES, QUERIES_BATCH
from tests.loop.support import GROUP, Bench, Exact, HandStage, TwoClasses, result, turn, with_taken
from tests.memory_broker import MemoryConsumer, MemoryTransactionalProducer
from tests.waiting import WAIT_S

TEXTS = [f"q{number}" for number in range(1_600)]


def test_after_a_rebalance_of_others_aborted_it_a_transaction_is_repeated_without_pause() -> None:
    bench, stage = Exact(partitions=4), HandStage()
    loop, consumer = bench.loop(stage)
    asked: list[bool] = []
    inner = consumer.membership
    known = [inner()]

    def membership(*, fresh: bool = False) -> Membership | None:
        asked.append(fresh)
        if fresh or known[0] is None:
            known[0] = inner()
        return known[0]

    consumer.membership = membership
    bench.publish("a")
    turn(loop)
    with bench.broker.lock:
        bench.broker.groups[GROUP].generation += 1  # as when partitions moved between two others
    stage.finish("a")
    asked.clear()
    turn(loop)
    assert bench.results() == ["a/0"], "without the pause after an abort: the clock stood still"
    assert asked.count(True) == 1


def test_a_commit_without_reply_is_repeated_and_takes_effect_once() -> None:
    bench, stage, loop, _ = with_taken(Exact(), "a")
    bench.broker.break_next("commit", RetryableError("no reply"), took_effect=True)
    stage.finish("a")
    turn(loop)
    assert (bench.results(), bench.committed()) == (["a/0"], (1, ""))
    assert not loop.in_flight.units


def test_work_of_a_partition_revoked_after_an_abort_is_dropped() -> None:
    bench, stage = Exact(), HandStage()
    loop, consumer = bench.loop(stage)
    bench.publish("a", partition=0)
    bench.publish("x", "y", partition=1)
    turn(loop)
    bench.broker.break_next("commit", AbortedError("the coordinator moved"))
    units = [stage.unit(text) for text in ("a", "x")]
    assert stage.sink is not None
    stage.sink.done(Done(parts=tuple((unit.id, 0) for unit in units), outputs=(result("a+x"),)))
    stage.finish("y")
    turn(loop, 1)
    bench.broker.break_next(
        "commit", AbortedError("the coordinator moved again, amid the revocation")
    )
    bench.broker.assign(GROUP, {1: consumer})
    stage.units.clear()
    bench.wait(loop)
    bench.wait(loop)
    assert bench.results() == ["y/0"]
    assert bench.committed(1) == (0, "1;1+1")
    assert [unit.record.text for unit in stage.units] == ["x"]


def test_an_expelled_member_commits_nothing_and_rejoins_in_its_next_poll() -> None:
    bench, stage, other = Exact(), HandStage(), HandStage()
    loop, consumer = bench.loop(stage)
    bench.publish("a")
    turn(loop)
    bench.broker.expel(GROUP, consumer)
    successor, _ = bench.loop(other)
    turn(successor)
    stage.finish("a")
    loop.delivery.step(0)
    assert bench.results() == []
    other.finish("a")
    turn(successor)
    bench.wait(loop)
    assert bench.results() == ["a/0"]


def test_a_member_ends_when_another_takes_its_instance_id() -> None:
    bench, stage, loop, _ = with_taken(Exact(), "a")
    bench.producer("member-1").start()
    stage.finish("a")
    turn(loop)
    assert isinstance(loop.failure, FencedError)
    assert bench.results() == []


def test_a_member_ends_when_its_transactions_only_abort() -> None:
    bench, stage, loop, _ = with_taken(Exact(), "a")
    stage.finish("a")
    for _ in range(ABORTS_MIN):
        assert loop.failure is None
        bench.broker.break_next("commit", AbortedError("the id is unknown"))
        bench.wait(loop, ABORTING_US_MAX // (ABORTS_MIN - 1))
    assert isinstance(loop.failure, FencedError)
    assert bench.results() == []


def test_a_hint_does_not_wait_for_work_that_cannot_be_committed() -> None:
    bench, stage, loop, _ = with_taken(Exact(), "a")
    bench.broker.break_next("commit", AbortedError("the coordinator moved"))
    stage.finish("a")
    loop.sink.hint(result("draft"))
    turn(loop, 1)
    assert bench.results() == ["draft"]


def with_every_second_finished(
    partitions: int = 1,
) -> tuple[Bench, HandStage, Loop[Query], MemoryConsumer]:
    """1,600 units of partition 0; more are finished than commit metadata can list."""
    bench, stage, loop, consumer = with_taken(Exact(partitions), *TEXTS, credit=10_000)
    for text in TEXTS[1::2]:
        stage.finish(text)
    for _ in range(5):
        bench.wait(loop)
    return bench, stage, loop, consumer


def test_work_that_the_metadata_cannot_list_waits_and_stops_its_partition_only() -> None:
    bench, stage, loop, _ = with_every_second_finished(partitions=2)
    assert 0 < loop.delivery.backlog < 800
    bench.publish("more")
    bench.publish("elsewhere", partition=1)
    bench.wait(loop)
    assert all(unit.record.text != "more" for unit in stage.units)
    stage.finish("elsewhere")
    bench.wait(loop)
    assert bench.committed(partition=1) == (1, ""), "the other partition goes on"
    for text in TEXTS[0::2]:
        stage.finish(text)
    for _ in range(5):
        bench.wait(loop)
    assert loop.delivery.backlog == 0
    assert sorted(bench.results()) == sorted(f"{text}/0" for text in [*TEXTS, "elsewhere"])
    assert any(unit.record.text == "more" for unit in stage.units)


def test_a_partition_assigned_with_long_metadata_makes_progress() -> None:
    bench, _, _, consumer = with_every_second_finished()
    assert len(bench.committed()[1]) > RUNS_STOP_BYTES
    consumer.crash()
    heir = HandStage(credit=0)
    again, _ = bench.loop(heir)
    for _ in range(3):
        bench.wait(again)
    heir.credit_records = 10_000
    for _ in range(3):
        bench.wait(again)
    assert heir.units[0].record.text == "q0", "without the slow record nothing can move"


def test_metadata_without_room_for_the_instance_id_stays_unchanged() -> None:
    at = TopicPartition("rag.queries.v1", 0)
    long = Position(7, "1;" + "1+1," * ((METADATA_BYTES_MAX - 2) // 4))
    assert claims({at: long}, "an-id", {}) == {at: long}
    assert claims({at: Position(7, "2;old;1+1")}, "an-id", {}) == {at: Position(7, "2;an-id;1+1")}


@settings(max_examples=15)
@given(st.integers(0, 1 << 30), st.integers(1, 3), st.integers(1, 2))
def test_any_order_of_completions_aborts_and_crashes_is_seen_once_within_the_metadata_limit(
    seed: int, parts: int, partitions: int
) -> None:
    rng = random.Random(seed)
    bench = Exact(partitions=partitions)
    stage = HandStage(credit=10_000)
    loop, consumer = bench.loop(stage, parts=lambda _: parts)
    texts = [f"q{number}" for number in range(30)]
    for text in texts:
        bench.publish(text, partition=rng.randrange(partitions))
    owed = [(text, part) for text in texts for part in range(parts)]
    rng.shuffle(owed)
    turn(loop)
    for text, part in owed:
        if rng.random() < 0.02:
            bench.broker.break_next(
                rng.choice(("send_offsets", "commit")), AbortedError("the coordinator moved")
            )
        if rng.random() < 0.02 and bench.members < 4:  # a fourth crash may end a record
            consumer.crash()
            stage = HandStage(credit=10_000)
            loop, consumer = bench.loop(stage, parts=lambda _: parts)
            bench.wait(loop)
        _finish(stage, text, part)
        if rng.random() < 0.3:
            bench.wait(loop)
    for _ in range(3 * len(texts)):  # after two deaths in a row, each is tried alone
        bench.wait(loop)
        for unit in list(stage.units):
            for part in range(parts):
                _finish(stage, unit.record.text or "", part)
    for _ in range(3):
        bench.wait(loop)
    assert sorted(bench.results()) == sorted(f"{text}/{part}" for text, part in owed)
    assert all(
        len(position.metadata) <= METADATA_BYTES_MAX
        for commit in bench.broker.commits
        for position in commit.values()
    )


def _finish(stage: HandStage, text: str, part: int) -> None:
    """Completes a part that this life still owes."""
    unit = next((unit for unit in stage.units if unit.record.text == text), None)
    if unit is not None and part not in unit.parts_done:
        stage.finish(text, part=part)
        stage.units[stage.units.index(unit)] = replace(unit, parts_done=unit.parts_done | {part})


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_revocation_commits_what_is_finished_unless_the_partition_is_lost(is_lost: bool) -> None:
    bench, stage, _, consumer = with_taken(Exact(), "a")
    stage.finish("a")
    if is_lost:
        bench.broker.expel(GROUP, consumer)
    else:
        bench.broker.assign(GROUP, {1: consumer})
    consumer.poll(0)
    assert bench.results() == ([] if is_lost else ["a/0"])


@pytest.mark.parametrize("in_a_revocation", [False, True])
def test_a_call_that_does_not_return_ends_the_service_and_commits_nothing_later(
    in_a_revocation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, stage, loop, _ = with_taken(Exact(), "a")
    called, go_on = threading.Event(), threading.Event()
    send_offsets = MemoryTransactionalProducer.send_offsets

    def hang(producer: MemoryTransactionalProducer, *arguments: Any) -> None:
        called.set()
        assert go_on.wait(WAIT_S)
        send_offsets(producer, *arguments)

    monkeypatch.setattr(MemoryTransactionalProducer, "send_offsets", hang)
    stage.finish("a")
    at = frozenset({TopicPartition(QUERIES.name, 0)})
    calls = threading.Thread(
        target=(lambda: loop.delivery.revoked(at, lost=False))
        if in_a_revocation
        else lambda: loop.delivery.step(0)
    )
    calls.start()
    assert called.wait(WAIT_S)
    bench.clock.sleep(CALL_US_MAX // 2)
    if not in_a_revocation:
        loop.step()
        assert loop.failure is None, "it may still come back"
    bench.clock.sleep(CALL_US_MAX)
    loop.step()
    assert "has not returned in 15 s" in str(loop.failure)
    loop.delivery.revoked(at, lost=True)
    go_on.set()
    calls.join(WAIT_S)
    turn(loop, 1)
    assert (bench.results(), bench.committed()) == ([], (None, ""))


def test_what_is_given_up_during_a_commit_is_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, stage, loop, _ = with_taken(Exact(), "a")
    commit, at = MemoryTransactionalProducer.commit, TopicPartition(QUERIES.name, 0)

    def give_up_and_commit(producer: MemoryTransactionalProducer) -> None:
        loop.positions.give_up(frozenset({at}))
        commit(producer)

    monkeypatch.setattr(MemoryTransactionalProducer, "commit", give_up_and_commit)
    stage.finish("a")
    turn(loop)
    bench.wait(loop)
    assert not head_of(bench.broker.committed(GROUP)[at].metadata).instance_id


def test_a_revocation_commits_batch_work_during_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TwoClasses, "delivery", "exactly_once")
    bench, stage = TwoClasses(), HandStage()
    loop, _ = bench.both(stage)
    bench.publish_batch(3)
    bench.publish("u")
    turn(loop)
    stage.finish("u")
    stage.finish("batch 0")
    turn(loop, 1)
    stage.finish("batch 2")
    loop.taking.revoked(frozenset({TopicPartition(QUERIES_BATCH.name, 0)}), lost=False)
    assert sorted(bench.results()) == ["batch 0/0", "batch 2/0", "u/0"]
