"""Exactly once with two priority classes: transactions of their own, bounded in bytes."""

from __future__ import annotations

from dataclasses import replace

from carpool.kafka.memory import MemoryBroker
from carpool.kafka.records import TopicPartition
from carpool.loop.delivery.exactly_once import BATCH_DONES_MAX, TRANSACTION_BYTES_MAX, _first
from carpool.loop.loop import Loop
from carpool.loop.priority.intake_queues import PriorityClass
from carpool.loop.stage import Done
from schemas.query import Query
from schemas.topics import QUERIES, QUERIES_BATCH, RETRIEVALS
from tests.loop.exact import Exact
from tests.loop.support import HandStage, result, turn


class TwoClasses(Exact):
    """A bench whose one loop reads the class `batch` too."""

    def __init__(self) -> None:
        super().__init__()
        topics = {QUERIES.name: 1, QUERIES_BATCH.name: 1, RETRIEVALS.name: 1, "rag.answers.v1": 1}
        self.broker = MemoryBroker(self.clock, topics)

    def both(self, stage: HandStage) -> Loop[Query]:
        loop, _ = self.loop(stage, extra_classes=(PriorityClass(topic=QUERIES_BATCH.name),))
        return loop

    def publish_batch(self, *texts: str) -> None:
        for text in texts:
            self.broker.append(QUERIES_BATCH.name, text.encode(), partition=0)


def test_urgent_work_commits_before_batch_work_that_finished_earlier() -> None:
    bench, stage = TwoClasses(), HandStage(credit=10_000)
    loop = bench.both(stage)
    batch = [f"b{number}" for number in range(3 * BATCH_DONES_MAX)]
    bench.publish_batch(*batch)
    bench.publish("u")
    turn(loop)
    for text in (*batch, "u"):
        stage.finish(text)
    turn(loop, 1)
    assert bench.results()[0] == "u/0"
    assert len(bench.results()) == BATCH_DONES_MAX + 1
    turn(loop, 1)
    assert len(bench.results()) == BATCH_DONES_MAX + 1, (
        "batch work has its pause beside what is urgent"
    )
    for _ in range(3):
        bench.wait(loop)
    assert sorted(bench.results()[1:]) == sorted(f"{text}/0" for text in batch)
    assert loop.ledger.in_flight == 0


def test_at_a_revocation_batch_work_that_waits_for_its_pause_is_committed_too() -> None:
    bench, stage = TwoClasses(), HandStage()
    loop = bench.both(stage)
    bench.publish_batch("a", "b")
    bench.publish("u")
    turn(loop)
    stage.finish("u")
    stage.finish("a")
    turn(loop, 1)
    stage.finish("b")
    loop.revoked(frozenset({TopicPartition(QUERIES_BATCH.name, 0)}), lost=False)
    assert sorted(bench.results()) == ["a/0", "b/0", "u/0"]


def test_a_transaction_takes_no_more_bytes_than_its_bound_but_for_one_piece_of_work() -> None:
    large = Done(
        parts=((1, 0),), outputs=(replace(result("x"), value=bytes(TRANSACTION_BYTES_MAX // 2)),)
    )
    assert len(_first([large] * 5)) == 2
    larger = replace(large, outputs=large.outputs * 3)
    assert _first([larger, large]) == [larger]
