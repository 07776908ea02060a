"""Members of a service join, leave and are killed under load: no gap, no duplicate.

A generator without an LLM is tested for all services: they share the loop. `carpool bench
rebalance` measures the pauses with the same group of members.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.reliability.rebalance.member_group import MemberGroup, open_group

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RATE_PER_S = 120
PHASE_S = 3.0


def begin(group: MemberGroup, *names: str) -> None:
    """The first member joins, the others are prepared, and the load starts."""
    first, *others = names
    group.prepare(*names)
    group.join(first)
    group.wait_assigned(first)
    group.load.start()
    assert others


@pytest.mark.long
def test_from_one_member_to_three_and_back_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with open_group(tmp_path, members=3, rate_per_s=RATE_PER_S, settings={}) as group:
        begin(group, "generator-1", "generator-2", "generator-3")
        for name in ("generator-2", "generator-3"):
            group.join(name)
            group.wait_assigned(name)
            time.sleep(PHASE_S)
        for name in ("generator-3", "generator-2"):
            group.leave(name)
            time.sleep(PHASE_S)
        accounting = group.account()
        assert accounting.published > 4 * PHASE_S * RATE_PER_S / 2
        assert accounting.holds, accounting
        assert set(group.owners().values()) == {"generator-1"}


def test_work_of_a_member_killed_inside_a_transaction_is_answered_once_by_the_others(
    tmp_path: Path,
) -> None:
    with open_group(tmp_path, members=2, rate_per_s=RATE_PER_S, settings={}) as group:
        begin(group, "generator-1", "generator-2")
        group.join("generator-2")
        group.wait_assigned("generator-2")
        time.sleep(PHASE_S)
        killed = group.kill_in_transaction("generator-2")
        assert killed.partitions
        accounting = group.account()
        assert accounting.holds, accounting
        assert set(group.owners().values()) == {"generator-1"}
