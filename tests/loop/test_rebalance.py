"""Members of a service come, go and are killed under load, on one real broker: no gap, no
duplicate.

The generator without an LLM stands for all services: they share the loop. How long partitions pause
meanwhile is what `carpool bench rebalance` measures, with the same rig.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.reliability.rebalance.rig import Rig, open_rig

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

RATE_PER_S = 120
PHASE_S = 3.0


def begin(rig: Rig, *names: str) -> None:
    """Lets the first member in, prepares the others, and starts the load."""
    first, *others = names
    rig.prepare(*names)
    rig.let_in(first)
    rig.await_share(first)
    rig.load.start()
    assert others


def test_from_one_member_to_three_and_back_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with open_rig(tmp_path, members=3, rate_per_s=RATE_PER_S) as rig:
        begin(rig, "generator-1", "generator-2", "generator-3")
        for name in ("generator-2", "generator-3"):
            rig.let_in(name)
            rig.await_share(name)
            time.sleep(PHASE_S)
        for name in ("generator-3", "generator-2"):
            rig.leave(name)
            time.sleep(PHASE_S)
        books = rig.close_books()
        assert books.published > 4 * PHASE_S * RATE_PER_S / 2
        assert books.holds, books
        assert set(rig.owners().values()) == {"generator-1"}


def test_what_a_member_killed_inside_a_transaction_had_is_answered_once_by_the_others(
    tmp_path: Path,
) -> None:
    with open_rig(tmp_path, members=2, rate_per_s=RATE_PER_S) as rig:
        begin(rig, "generator-1", "generator-2")
        rig.let_in("generator-2")
        rig.await_share("generator-2")
        time.sleep(PHASE_S)
        killed = rig.kill_in_transaction("generator-2")
        assert killed.partitions
        books = rig.close_books()
        assert books.holds, books
        assert set(rig.owners().values()) == {"generator-1"}
