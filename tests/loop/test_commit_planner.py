"""When a transaction begins and which finished work it commits, as values and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    RATE_US,
    SCALE_MAX,
    TRANSACTION_BYTES,
    TRANSACTION_DONES,
    TRANSACTION_US,
    URGENT_RECENTLY_US,
    CommitPlanner,
)
from carpool.loop.partition_progress import Place
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

    @property
    def positions(self) -> OnePartition:
        return self

    def places(self, parts: Iterable[tuple[int, int]]) -> list[Place]:
        return [
            Place(AT if number < self.elsewhere else OTHER, number, part) for number, part in parts
        ]

    def after(self, places: Iterable[Place]) -> dict[TopicPartition, Position]:
        of = [place.at for place in places]
        here = {AT: Position(of.count(AT), "x" * self.bytes_each * of.count(AT))}
        return (here if AT in of else {}) | ({OTHER: Position(1, "")} if OTHER in of else {})

    def is_live(self, parts: Sequence[tuple[int, int]]) -> bool:
        return parts[0][0] not in self.revoked


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


def commits_us(arrivals_us: list[int], *, took_us: int = 4_000) -> list[tuple[int, int]]:
    """Returns when each record came and when its transaction began, of a planner left to itself."""
    progress, planner = OnePartition(), planner_with(progress=OnePartition())
    waiting, seen, now_us = list(arrivals_us), [], 0
    while waiting or planner.finished:
        now_us = max(now_us, planner.next_begin_us, *waiting[:1] if not planner.finished else [])
        came = [each for each in waiting if each <= now_us]
        waiting = waiting[len(came) :]
        for number, _ in enumerate(came):
            planner.add(done(number), is_batch=False)
        planner.plan(progress, now_us, take_all=False)
        planner.began(now_us)
        seen += [(each, now_us) for each in came]
        now_us += took_us
        planner.ended(now_us, is_aborted=False)
        planner.committed()
        assert 0 <= planner.next_begin_us - now_us <= 20_000
    return seen


@pytest.mark.parametrize("rate", [1, 10, 30, 40])
def test_records_that_come_one_by_one_never_wait_for_a_pause(rate: int) -> None:
    came_us = [NOW_US + number * 1_000_000 // rate for number in range(3 * rate)]
    assert commits_us(came_us) == [(each, each) for each in came_us]


@pytest.mark.parametrize(("rate", "a_second"), [(100, 44), (1_000, 44)])
def test_records_that_keep_coming_share_transactions_that_begin_every_24_ms(
    rate: int, a_second: int
) -> None:
    came_us = [NOW_US + number * 1_000_000 // rate for number in range(3 * rate)]
    began_us = {began for _, began in commits_us(came_us) if began >= NOW_US + 2_000_000}
    assert len(began_us) <= a_second
    quiet_us = [*came_us, NOW_US + 10_000_000, NOW_US + 10_010_000]
    assert commits_us(quiet_us)[-2:] == [(each, each) for each in quiet_us[-2:]], "at once again"


@given(st.lists(st.integers(0, 50_000), max_size=200), st.integers(0, 100_000))
def test_whatever_comes_waits_for_one_transaction_and_one_pause_at_most(
    gaps_us: list[int], took_us: int
) -> None:
    came_us = [NOW_US + sum(gaps_us[:number]) for number in range(len(gaps_us))]
    assert all(
        began - came <= took_us + 20_000 for came, began in commits_us(came_us, took_us=took_us)
    )


def test_the_next_commit_is_told_while_a_transaction_is_open_and_an_abort_outlasts_a_pause() -> (
    None
):
    progress = OnePartition(bytes_each=0)
    planner = planner_with(*map(done, range(100)), progress=progress)
    planner.plan(progress, NOW_US, take_all=False)
    for second in range(2):
        planner.began(NOW_US + second * RATE_US)
        now_us = NOW_US + (second + 1) * RATE_US
        planner.ended(now_us, is_aborted=False)
    assert planner.next_begin_us == planner.next_commit_at_us == now_us + 20_000
    planner.began(now_us)
    assert planner.next_commit_at_us == now_us + RATE_US + 20_000, "it may take as long as the last"
    planner.ended(now_us, is_aborted=True)
    assert planner.next_begin_us == now_us + ABORT_WAIT_US, "the longer of the two"


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
