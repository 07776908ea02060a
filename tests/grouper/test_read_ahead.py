"""The grouper as a stage: windows that are read ahead, and what their records say of the next."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from carpool.loop.stage import Credit
from schemas.group import Group
from tests.grouper.stage import AHEAD, Gate, GatePolicy, prepared, running
from tests.waiting import wait_until


def horizon_numbers(group: Group) -> list[tuple[int, int, int]]:
    return [(entry.cluster, entry.windows, entry.queries) for entry in group.horizon]


def test_full_windows_are_read_ahead_while_one_leaves_and_its_record_says_what_they_want(
    tmp_path: Path,
) -> None:
    policy = GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy) as rig:
        rig.offer(
            *["ada"] * 4,
            *["bell", "curie"] * 2,
            *["curie", "darwin"] * 2,
            *["euler"] * 4,
            "faraday",
        )
        rig.tick(waiting=50)
        wait_until(lambda: policy.windows == 1 and prepared(rig) == 3)
        assert rig.stage.credit().records == 24 - 17, "what is read ahead is counted"
        policy.opened.release()
        wait_until(lambda: policy.windows == 2 and prepared(rig) == 3)
        policy.opened.release(9)
        rig.settled(16)
        rig.tick()
        rig.settled(17)
        assert [horizon_numbers(group) for group in rig.sink.groups] == [
            [(1, 1, 2), (2, 1, 4), (3, 2, 2)],
            [(2, 1, 2), (3, 1, 2), (4, 2, 4)],
            [(4, 1, 4)],
            [],
            [],
        ]
        assert [len(group.queries) for group in rig.sink.groups] == [4, 4, 4, 4, 1]


def test_a_window_leaves_although_the_next_one_is_still_being_embedded(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, settings=AHEAD, embedder=gate) as rig:
        rig.offer(*["ada"] * 8)
        gate.opened.release()
        rig.tick()
        wait_until(lambda: len(gate.batches) == 2)
        wait_until(lambda: len(rig.sink.acknowledged) == 4)
        assert [horizon_numbers(group) for group in rig.sink.groups] == [[]], (
            "what is not known yet is not waited for"
        )
        gate.opened.release()
        rig.settled(8)


@pytest.mark.parametrize(("horizon_windows", "needs_horizon"), [(0, True), (2, False)])
def test_without_a_horizon_one_window_is_in_hand_at_a_time(
    tmp_path: Path, horizon_windows: int, needs_horizon: bool
) -> None:
    gate, policy = Gate(), GatePolicy()
    settings = msgspec.structs.replace(AHEAD, horizon_windows=horizon_windows)
    with running(
        tmp_path, settings=settings, policy=policy, embedder=gate, needs_horizon=needs_horizon
    ) as rig:
        gate.opened.release(99)
        rig.offer(*["ada"] * 12)
        rig.tick()
        wait_until(lambda: policy.windows == 1)
        rig.tick()
        assert (len(gate.batches), len(rig.stage.pending_windows())) == (1, 1)
        policy.opened.release(3)
        rig.settled(12)
        assert [group.horizon for group in rig.sink.groups] == [(), (), ()]


def test_revoked_queries_are_forgotten_where_they_were_read_ahead(tmp_path: Path) -> None:
    policy = GatePolicy()
    with running(tmp_path, settings=AHEAD, policy=policy) as rig:
        units = rig.offer(*["ada"] * 4, *["bell", "curie"] * 2, *["darwin"] * 4)
        rig.tick()
        wait_until(lambda: prepared(rig) == 3)
        gone = {unit.id for unit in [*units[4:8:2], *units[8:]]}
        rig.stage.revoke(frozenset(gone), frozenset())
        rig.stage.check_integrity()
        assert rig.stage.credit().records == 24 - 6
        policy.opened.release(9)
        wait_until(lambda: not rig.stage.pending_windows())
        assert sorted(rig.sink.acknowledged) == sorted(
            unit.id for unit in units if unit.id not in gone
        )
        assert [horizon_numbers(group) for group in rig.sink.groups] == [[(2, 1, 2)], []]
        assert rig.stage.credit() == Credit(records=24, size_bytes=32 * 1024 * 1024)
