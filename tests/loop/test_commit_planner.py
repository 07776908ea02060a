"""When a transaction begins and which finished work it commits, as values and times."""

from __future__ import annotations

from collections.abc import Iterable, Set

import pytest

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import UNNAMED_BYTES_MAX
from carpool.kafka.records import Output, TopicPartition
from carpool.loop.delivery.commit_planner import (
    ABORT_DOUBLINGS_MAX,
    ABORT_WAIT_US,
    BATCH_DONES,
    BATCH_PAUSE_US,
    BLOCKED_WAIT_US,
    HELD_US,
    SCALE_MAX,
    TRANSACTION_BYTES,
    TRANSACTION_DONES,
    TRANSACTION_US,
    URGENT_RECENTLY_US,
    CommitPlanner,
)
from carpool.loop.stage import Done

NOW_US = 1_000_000_000
AT, OTHER = TopicPartition("rag.queries.v1", 0), TopicPartition("rag.queries.v1", 1)


class OnePartition:
    """Units of one partition whose metadata has `bytes_each` bytes for each finished unit.

    Units from `elsewhere` on are of another partition.
    """

    def __init__(
        self,
        *,
        batch_from: int = 1_000_000,
        bytes_each: int = 1,
        elsewhere: int = 1_000_000,
        revoked: tuple[int, ...] = (),
    ) -> None:
        self.batch_from = batch_from
        self.bytes_each = bytes_each
        self.elsewhere = elsewhere
        self.revoked = revoked

    def is_batch(self, done: Done) -> bool:
        return done.parts[0][0] >= self.batch_from

    def positions_with(self, finished: Iterable[Done]) -> dict[TopicPartition, Position]:
        numbers = ids(finished)
        count = sum(number < self.elsewhere for number in numbers)
        here = {AT: Position(count, "x" * self.bytes_each * count)} if count else {}
        return here | ({OTHER: Position(1, "")} if len(numbers) > count else {})

    def touches(self, done: Done, partitions: Set[TopicPartition]) -> bool:
        return AT in partitions and done.parts[0][0] < self.elsewhere

    def is_live(self, done: Done) -> bool:
        return done.parts[0][0] not in self.revoked


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


def test_the_oldest_urgent_work_goes_first_and_batch_work_pauses_while_there_is_urgent_work() -> (
    None
):
    progress = OnePartition(batch_from=100)
    planner = planner_with(*map(done, (100, 2, 101, 1)), progress=progress)
    plan = planner.plan(progress, NOW_US, take_all=False)
    assert ids(plan.work) == [1, 2, 100, 101]
    planner.committed()
    planner.add(done(102), is_batch=True)
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
    urgent = [done(number) for number in range(TRANSACTION_DONES + 1)]
    batch = [done(1_000 + number) for number in range(BATCH_DONES + 1)]
    many = planner_with(*urgent, *batch, progress=progress)
    assert len(many.plan(progress, NOW_US, take_all=False).work) == TRANSACTION_DONES + BATCH_DONES
    many.blocked(NOW_US)
    assert many.plan(progress, NOW_US, take_all=True).work == [*urgent, *batch]
    half = TRANSACTION_BYTES // 2
    large = planner_with(*(done(number, half) for number in range(5)), progress=progress)
    assert ids(large.plan(progress, NOW_US, take_all=False).work) == [0, 1]
    larger = planner_with(done(0, 3 * half), done(1), progress=progress)
    assert ids(larger.plan(progress, NOW_US, take_all=False).work) == [0]


def test_while_work_is_left_over_transactions_grow_and_follow_without_a_pause() -> None:
    progress = OnePartition(bytes_each=0)
    planner = planner_with(*map(done, range(110 * TRANSACTION_DONES)), progress=progress)
    taken, now_us = [], NOW_US
    while planner.finished:
        taken.append(len(planner.plan(progress, now_us, take_all=False).work) // TRANSACTION_DONES)
        planner.began(now_us)
        now_us += TRANSACTION_US // 2
        planner.ended(now_us, is_aborted=False)
        planner.committed()
        if planner.finished:
            assert planner.next_begin_us == now_us
    assert taken[:7] == [1, 2, 4, 8, 16, 32, SCALE_MAX]
    assert planner.next_begin_us > now_us
    for number in range(3 * TRANSACTION_DONES):
        planner.add(done(number), is_batch=False)
    slow = len(planner.plan(progress, now_us, take_all=False).work)
    planner.began(now_us)
    planner.ended(now_us + TRANSACTION_US, is_aborted=False)
    planner.committed()
    assert slow == planner.finished + 3 * TRANSACTION_DONES, "all of it: the limit was high"


def test_a_transaction_that_takes_long_halves_the_limit() -> None:
    progress = OnePartition(bytes_each=0)
    planner = planner_with(*map(done, range(20 * TRANSACTION_DONES)), progress=progress)
    taken, now_us = [], NOW_US
    for took_us in (1, 1, TRANSACTION_US, TRANSACTION_US, 1):
        taken.append(len(planner.plan(progress, now_us, take_all=False).work) // TRANSACTION_DONES)
        planner.began(now_us)
        now_us += took_us
        planner.ended(now_us, is_aborted=False)
        planner.committed()
    assert taken == [1, 2, 4, 2, 1]


def test_what_the_metadata_cannot_list_is_held_back_and_other_partitions_go_on() -> None:
    progress = OnePartition(bytes_each=UNNAMED_BYTES_MAX // 10, elsewhere=500)
    planner = planner_with(*map(done, [*range(1, 400), 500]), progress=progress)
    seen: list[int] = []
    for _ in range(3):
        plan = planner.plan(progress, NOW_US, take_all=False)
        assert len(plan.positions.get(AT, Position(0, "")).metadata) <= UNNAMED_BYTES_MAX
        seen += ids(plan.work)
        planner.committed()
    assert seen[:7] == list(range(1, 8)), "the oldest first"
    assert 500 in seen, "work of another partition does not wait behind work that is held back"
    held = planner.finished
    assert held > 300
    assert ids(planner.plan(progress, NOW_US + HELD_US, take_all=False).work), "tried again"


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


def test_each_abort_in_a_row_doubles_the_pause_and_only_the_first_is_repeated_at_once() -> None:
    planner, waits_us = CommitPlanner(20_000), []
    for _ in range(8):
        planner.began(NOW_US)
        planner.ended(NOW_US, is_aborted=True)
        waits_us.append(planner.next_begin_us - NOW_US)
        planner.rebalanced(NOW_US + 1)
        assert (planner.next_begin_us == NOW_US + 1) == (len(waits_us) == 1)
    doubled = [ABORT_WAIT_US * 2**number for number in range(ABORT_DOUBLINGS_MAX + 1)]
    assert waits_us == [*doubled, doubled[-1], doubled[-1]]
    planner.ended(NOW_US, is_aborted=False)
    planner.ended(NOW_US, is_aborted=True)
    assert planner.next_begin_us == NOW_US + ABORT_WAIT_US, "a commit ends the row"


def test_blocked_and_aborted_work_is_planned_again_and_revoked_work_is_removed() -> None:
    progress = OnePartition()
    planner = planner_with(*map(done, (1, 2, 3)), progress=progress)
    assert ids(planner.plan(progress, NOW_US, take_all=False).work) == [1, 2, 3]
    planner.blocked(NOW_US)
    assert planner.next_begin_us == NOW_US + BLOCKED_WAIT_US
    assert ids(planner.plan(progress, NOW_US, take_all=False).work) == [1, 2, 3]
    planner.began(NOW_US)
    planner.ended(NOW_US, is_aborted=True)
    progress.revoked = (1, 3)
    plan = planner.plan(progress, NOW_US, take_all=False)
    assert (ids(plan.work), ids(plan.revoked)) == ([2], [1, 3])
    assert planner.finished == 1
