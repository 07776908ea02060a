"""The searcher's eviction policy: its contract, its dumb version, and what it ranks by."""

from __future__ import annotations

import pytest
from hypothesis import given

from searcher.plan.farthest_next_use import FarthestNextUse
from searcher.plan.slices import SliceId
from tests.searcher.dumb_policies import (
    NOBODY,
    OPERATIONS,
    PROTECTED,
    A,
    B,
    C,
    D,
    DumbFarthestNextUse,
    Operation,
    do,
    fill,
)


@pytest.mark.parametrize("half_life_windows", [0, 1])
@given(operations=OPERATIONS, protected=PROTECTED)
def test_it_evicts_what_the_dumb_version_evicts(
    half_life_windows: int, operations: list[Operation], protected: frozenset[SliceId]
) -> None:
    policy: FarthestNextUse = FarthestNextUse(half_life_windows)
    dumb = DumbFarthestNextUse(half_life_windows)
    for operation in operations:
        what, _, horizon = operation
        if (
            what == "remove"
        ):  # most evictions are of the victim, so that what follows from one is followed through
            victim = dumb.victim(frozenset(horizon))
            operation = (what, victim if victim is not None else operation[1], horizon)
        do(policy, operation)
        do(dumb, operation)
        assert policy.victim(NOBODY) == dumb.victim(NOBODY)
        assert policy.victim(protected) == dumb.victim(protected)
    policy.check_integrity()


def test_farthest_next_use_evicts_what_is_wanted_last_whatever_was_popular() -> None:
    """Belady 1966: replace what will not be needed for the longest time."""
    policy = FarthestNextUse()
    fill(policy, A, B, C, D)
    for _ in range(9):
        policy.touch(C)
    policy.set_horizon({A: 1, C: 3, B: 2, D: 4})
    order = []
    while (victim := policy.victim(NOBODY)) is not None:
        order.append(victim)
        policy.remove(victim)
    assert order == [D, C, B, A]


def test_farthest_next_use_still_ranks_clusters_after_thousands_of_windows() -> None:
    policy = FarthestNextUse(half_life_windows=1)
    fill(policy, A, B)
    for window in range(2000):  # weights would overflow a float after 1,024 doublings
        policy.set_horizon({})
        policy.touch(A if window % 2 else B)
    assert policy.victim(NOBODY) == B
    policy.check_integrity()
