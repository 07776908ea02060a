"""When a transaction begins and which finished work it commits, as values and times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import RUNS_BYTES_MAX, runs_bytes
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
from carpool.loop.stage import Done
from schemas.topics import QUERIES, QUERIES_BATCH

NOW_US = 1_000_000_000
AT, OTHER = TopicPartition(QUERIES.name, 0), TopicPartition(QUERIES.name, 1)
BATCH = TopicPartition(QUERIES_BATCH.name, 0)


@dataclass(kw_only=True)
class OnePartition:
    """Units of one partition whose runs have `bytes_each` bytes for each finished unit.

    Units from `elsewhere` on are of another partition, those from `batch_from` on of class batch.
    `moved`: partitions whose position moved without work.
    """

    batch_from: int = 1_000_000
    bytes_each: int = 1
    elsewhere: int = 1_000_000
    revoked: tuple[int, ...] = ()
    moved: tuple[TopicPartition, ...] = ()

    def partitions(self, done: Done) -> frozenset[TopicPartition]:
        unit_id = done.parts[0][0]
        is_batch, is_other = unit_id >= self.batch_from, unit_id >= self.elsewhere
        return frozenset({BATCH if is_batch else OTHER if is_other else AT})

    def after(self, work: Iterable[Done]) -> dict[TopicPartition, Position]:
        of = [at for done in work for at in self.partitions(done)]
        runs = "x" * self.bytes_each * of.count(AT)
        return {at: Position(of.count(at), "1;" + runs * (at == AT)) for at in {*of, *self.moved}}

    def is_live(self, parts: Iterable[tuple[int, int]]) -> bool:
        return not any(unit_id in self.revoked for unit_id, _ in parts)


def done(unit_id: int, size_bytes: int = 1) -> Done:
    output = Output(topic="rag.groups.v1", key=None, value=bytes(size_bytes))
    return Done(parts=((unit_id, 0),), outputs=(output,))


def planner_with(*work: Done, progress: OnePartition) -> CommitPlanner:
    planner = CommitPlanner(20_000)
    for each in work:
        planner.add(each, progress.partitions(each))
    return planner


def ids(work: Iterable[Done]) -> list[int]:
    return [each.parts[0][0] for each in work]


def commit(
    planner: CommitPlanner, progress: OnePartition, now_us: int, *, took_us: int = 0
) -> list[int]:
    """Plans and commits; returns the units of the work."""
    plan = planner.plan(progress, now_us, take_all=False)
    planner.ended(now_us + took_us, is_committed=True)
    return ids(plan.work)


def test_the_oldest_urgent_work_goes_first_and_batch_work_pauses_while_there_is_urgent_work() -> (
    None
):
    progress = OnePartition(batch_from=100)
    planner = planner_with(*map(done, (100, 2, 101, 1)), progress=progress)
    assert commit(planner, progress, NOW_US) == [1, 2, 100, 101]
    planner.add(done(102), frozenset({BATCH}))
    assert commit(planner, progress, NOW_US + 2) == []
    assert ids(planner.plan(progress, NOW_US + 2, take_all=True).work) == [102], "a revocation"
    planner.ended(NOW_US + 2, is_committed=False)
    assert commit(planner, progress, NOW_US + 2 + BATCH_PAUSE_US) == [102]
    planner.add(done(103), frozenset({BATCH}))
    progress.moved = (AT,)
    plan = planner.plan(progress, NOW_US + 3 + BATCH_PAUSE_US, take_all=False)
    assert plan == ([], {}, []), "positions that moved without work have time too"
    late_us = NOW_US + URGENT_RECENTLY_US
    assert commit(planner, progress, late_us) == [103]
    planner.add(done(104), frozenset({BATCH}))
    assert commit(planner, progress, late_us + 1) == [104], "no urgent work for a while: no pause"


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
        took_us = TRANSACTION_US // 2
        taken.append(len(commit(planner, progress, now_us, took_us=took_us)) // TRANSACTION_DONES)
        now_us += took_us
        if planner.finished:
            assert planner.next_begin_us == now_us
    assert taken[:7] == [1, 2, 4, 8, 16, 32, SCALE_MAX]
    assert planner.next_begin_us > now_us
    for number in range(3 * TRANSACTION_DONES):
        planner.add(done(number), frozenset({AT}))
    slow = len(commit(planner, progress, now_us, took_us=TRANSACTION_US))
    assert slow == planner.finished + 3 * TRANSACTION_DONES, "all of it: the limit was high"


def test_a_transaction_that_takes_long_halves_the_limit() -> None:
    progress = OnePartition(bytes_each=0)
    planner = planner_with(*map(done, range(20 * TRANSACTION_DONES)), progress=progress)
    taken, now_us = [], NOW_US
    for took_us in (1, 1, TRANSACTION_US, TRANSACTION_US, 1):
        taken.append(len(commit(planner, progress, now_us, took_us=took_us)) // TRANSACTION_DONES)
        now_us += took_us
    assert taken == [1, 2, 4, 2, 1]


def test_what_the_metadata_cannot_list_is_held_back_and_other_partitions_go_on() -> None:
    progress = OnePartition(bytes_each=RUNS_BYTES_MAX // 10, elsewhere=500)
    planner = planner_with(*map(done, [*range(1, 400), 500]), progress=progress)
    seen: list[int] = []
    for _ in range(3):
        plan = planner.plan(progress, NOW_US, take_all=False)
        assert runs_bytes(plan.positions.get(AT, Position(0, "")).metadata) <= RUNS_BYTES_MAX
        seen += ids(plan.work)
        planner.ended(NOW_US, is_committed=True)
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
            planner.add(done(number), frozenset({AT}))
        commit(planner, progress, now_us, took_us=took_us)
        seen += [(each, now_us) for each in came]
        now_us += took_us
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
    planner, now_us = CommitPlanner(20_000), NOW_US
    for _ in range(2):
        for number in range(100):
            planner.add(done(number), frozenset({AT}))
        commit(planner, progress, now_us, took_us=RATE_US)
        now_us += RATE_US
    assert planner.next_begin_us == planner.next_commit_at_us == now_us + 20_000
    planner.add(done(1), frozenset({AT}))
    planner.plan(progress, now_us, take_all=False)
    assert planner.next_commit_at_us == now_us + RATE_US + 20_000, "it may take as long as the last"
    planner.ended(now_us, is_committed=False)
    assert planner.next_begin_us == now_us + ABORT_WAIT_US, "the longer of the two"


def test_each_abort_in_a_row_doubles_the_pause_and_only_the_first_is_repeated_at_once() -> None:
    progress, waits_us = OnePartition(), []
    planner = planner_with(done(1), progress=progress)
    for _ in range(8):
        planner.plan(progress, NOW_US, take_all=False)
        planner.ended(NOW_US, is_committed=False)
        waits_us.append(planner.next_begin_us - NOW_US)
        planner.rebalanced(NOW_US + 1)
        assert (planner.next_begin_us == NOW_US + 1) == (len(waits_us) == 1)
    doubled = [ABORT_WAIT_US * 2**number for number in range(ABORT_DOUBLINGS_MAX + 1)]
    assert waits_us == [*doubled, doubled[-1], doubled[-1]]
    commit(planner, progress, NOW_US)
    planner.add(done(2), frozenset({AT}))
    planner.plan(progress, NOW_US, take_all=False)
    planner.ended(NOW_US, is_committed=False)
    assert planner.next_begin_us == NOW_US + ABORT_WAIT_US, "a commit ends the row"


def test_blocked_and_aborted_work_is_planned_again_and_revoked_work_is_removed() -> None:
    progress = OnePartition()
    planner = planner_with(*map(done, (1, 2, 3)), progress=progress)
    assert ids(planner.plan(progress, NOW_US, take_all=False).work) == [1, 2, 3]
    planner.blocked(NOW_US)
    assert planner.next_begin_us == NOW_US + BLOCKED_WAIT_US
    assert ids(planner.plan(progress, NOW_US, take_all=False).work) == [1, 2, 3]
    planner.ended(NOW_US, is_committed=False)
    progress.revoked = (1, 3)
    plan = planner.plan(progress, NOW_US, take_all=False)
    assert (ids(plan.work), ids(plan.revoked)) == ([2], [1, 3])
    assert planner.finished == 1
