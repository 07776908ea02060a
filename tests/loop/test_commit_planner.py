"""When a transaction begins and which finished work it commits, as values and times."""

from __future__ import annotations

from collections.abc import Iterable, Set

import pytest

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import UNNAMED_BYTES_MAX
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.delivery.commit_planner import (
    ABORT_WAIT_US,
    BATCH_DONES_MAX,
    BATCH_PAUSE_US,
    BLOCKED_WAIT_US,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_DONES_MAX,
    URGENT_RECENTLY_US,
    CommitPlanner,
)
from carpool.loop.stage import Done

NOW_US = 1_000_000_000
AT = TopicPartition("rag.queries.v1", 0)


class OnePartition:
    """Units of one partition whose metadata has `bytes_each` bytes for each finished unit."""

    def __init__(self, *, batch_from: int = 1_000_000, bytes_each: int = 1) -> None:
        self.batch_from = batch_from
        self.bytes_each = bytes_each

    def is_batch(self, done: Done) -> bool:
        return done.parts[0][0] >= self.batch_from

    def positions_with(self, finished: Iterable[Done]) -> dict[TopicPartition, Position]:
        count = len(list(finished))
        return {AT: Position(count, "x" * self.bytes_each * count)} if count else {}

    def nearest_first(self, finished: Iterable[Done]) -> list[Done]:
        return sorted(finished, key=lambda done: done.parts)

    def touches(self, done: Done, partitions: Set[TopicPartition]) -> bool:
        return AT in partitions


def done(unit_id: int, size_bytes: int = 1) -> Done:
    output = Output(topic="rag.groups.v1", key=None, value=bytes(size_bytes))
    return Done(parts=((unit_id, 0),), outputs=(output,))


def planner_with(*work: Done, progress: OnePartition, interval_us: int = 20_000) -> CommitPlanner:
    planner = CommitPlanner(interval_us)
    for each in work:
        planner.add(each, is_batch=progress.is_batch(each))
    return planner


def ids(work: Iterable[Done]) -> list[int]:
    return [each.parts[0][0] for each in work]


def test_urgent_work_goes_first_and_batch_work_pauses_while_there_is_urgent_work() -> None:
    progress = OnePartition(batch_from=100)
    planner = planner_with(*map(done, (100, 1, 101, 2)), progress=progress)
    plan = planner.plan(progress, NOW_US, take_all=False)
    assert ids(plan.work) == [1, 2, 100, 101]
    planner.committed(plan.work)
    planner.add(done(102), is_batch=True)
    assert planner.is_due(NOW_US + 1, take_all=False), "urgent work was there at the last plan"
    assert ids(planner.plan(progress, NOW_US + 1, take_all=False).work) == []
    assert not planner.is_due(NOW_US + 2, take_all=False)
    assert planner.is_due(NOW_US + 2, take_all=True), "a revocation takes all"
    assert planner.is_due(NOW_US + BATCH_PAUSE_US, take_all=False)
    assert ids(planner.plan(progress, NOW_US + BATCH_PAUSE_US, take_all=False).work) == [102]
    assert not planner.is_due(NOW_US + BATCH_PAUSE_US + 1, take_all=False)
    late_us = NOW_US + URGENT_RECENTLY_US
    planner.plan(progress, late_us, take_all=False)
    assert planner.is_due(late_us + 1, take_all=False), "no urgent work for a while: no pause"


def test_a_transaction_is_bounded_in_work_and_in_bytes_but_takes_at_least_one() -> None:
    progress = OnePartition(batch_from=1_000)
    urgent = [done(number) for number in range(TRANSACTION_DONES_MAX + 1)]
    batch = [done(1_000 + number) for number in range(BATCH_DONES_MAX + 1)]
    many = planner_with(*urgent, *batch, progress=progress)
    assert len(many.plan(progress, NOW_US, take_all=False).work) == (
        TRANSACTION_DONES_MAX + BATCH_DONES_MAX
    )
    assert many.plan(progress, NOW_US, take_all=True).work == [*urgent, *batch]
    half = TRANSACTION_BYTES_MAX // 2
    large = planner_with(*(done(number, half) for number in range(5)), progress=progress)
    assert ids(large.plan(progress, NOW_US, take_all=False).work) == [0, 1]
    larger = planner_with(done(0, 3 * half), done(1), progress=progress)
    assert ids(larger.plan(progress, NOW_US, take_all=False).work) == [0]


def test_what_the_metadata_cannot_list_waits_for_the_slow_record() -> None:
    progress = OnePartition(bytes_each=UNNAMED_BYTES_MAX // 10)
    planner = planner_with(*map(done, (3, 1, 2)), progress=progress)
    planner.plan(progress, NOW_US, take_all=False)
    assert not planner.is_full
    for number in range(4, 30):
        planner.add(done(number), is_batch=False)
    plan = planner.plan(progress, NOW_US, take_all=False)
    assert planner.is_full
    assert ids(plan.work) == list(range(1, 1 + len(plan.work))), "the nearest first"
    assert 0 < len(plan.positions[AT].metadata) <= UNNAMED_BYTES_MAX


@pytest.mark.parametrize(
    ("took_us", "is_aborted", "pause_us"),
    [(5_000, False, 5_000), (90_000, False, 20_000), (5_000, True, ABORT_WAIT_US)],
)
def test_the_pause_is_as_long_as_the_transaction_and_at_most_the_interval(
    took_us: int, is_aborted: bool, pause_us: int
) -> None:
    progress = OnePartition()
    planner = planner_with(done(1), progress=progress)
    assert planner.next_begin_us <= NOW_US, "now"
    planner.plan(progress, NOW_US, take_all=False)
    planner.began(NOW_US)
    planner.ended(NOW_US + took_us, is_aborted=is_aborted)
    assert planner.next_begin_us == planner.next_commit_at_us == NOW_US + took_us + pause_us
    planner.began(NOW_US + 500_000)
    assert planner.next_commit_at_us == NOW_US + 500_000 + took_us + min(took_us, 20_000), (
        "an open transaction is assumed to take as long as the last one"
    )


def test_blocked_work_is_tried_again_soon_and_revoked_work_is_removed() -> None:
    progress = OnePartition()
    planner = planner_with(*map(done, (1, 2, 3)), progress=progress)
    planner.blocked(NOW_US)
    assert planner.next_begin_us == NOW_US + BLOCKED_WAIT_US
    assert ids(planner.remove(lambda each: ids([each]) != [2])) == [1, 3]
    assert planner.finished == 1
