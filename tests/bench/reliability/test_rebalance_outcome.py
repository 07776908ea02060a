"""Pauses and takeovers from the times of answers, and the promises that break."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bench.core.accounting import account
from bench.reliability.rebalance.outcome import (
    Change,
    Kill,
    Pause,
    RebalanceResult,
    baseline,
    gaps_ms,
    pause,
    promises,
    took_over_s,
)

CHANGE = Change(what="b joins", began_s=10.0, ended_s=12.0, stayed=(0,), moved=(1,))
SHORT = Pause(change=CHANGE, pause_ms=199.0, moving_ms=900.0)
RESULT = RebalanceResult(
    accounting=account(["q"], ["q"]),
    baseline_ms=None,
    pauses=(SHORT,),
    kills=(Kill(killed_s=20.0, partitions=(1,)),),
    takeovers_s=({1: 7.9},),
    session_s=6.0,
    load_behind_ms_max=1.0,
)


def test_gaps_reach_from_the_last_answer_before_to_the_first_after() -> None:
    assert gaps_ms([8.0, 9.0, 11.0, 12.5, 13.0], 10.0, 12.0) == [2_000.0, 1_500.0]


def test_a_pause_is_the_longest_gap_of_what_stayed_beyond_the_baseline() -> None:
    times = {0: [9.9, 10.2, 10.3, 12.1], 1: [9.9, 11.9, 12.0]}
    found = pause(CHANGE, times, 100.0)
    assert found.pause_ms == pytest.approx(1_700.0)
    assert found.moving_ms == pytest.approx(2_000.0)


def test_the_baseline_has_only_gaps_in_its_spans() -> None:
    found = baseline({0: [0.0, 1.0, 2.0, 9.0]}, [(0.5, 1.5)])
    assert found is not None
    assert (found.count, found.max) == (2, 1_000.0)


def test_a_takeover_ends_when_the_partition_is_answered_again() -> None:
    kill = Kill(killed_s=20.0, partitions=(1, 2))
    assert took_over_s(kill, {1: [19.0, 20.1, 26.5, 26.6]}) == {1: 6.5, 2: float("inf")}


@pytest.mark.parametrize(
    ("result", "broken"),
    [
        (RESULT, set()),
        (
            replace(RESULT, accounting=account(["q", "r"], ["q"])),
            {"no gap: each query has an answer"},
        ),
        (
            replace(RESULT, accounting=account(["q"], ["q", "q"])),
            {"no duplicate: no query has two"},
        ),
        (
            replace(RESULT, pauses=(SHORT, replace(SHORT, pause_ms=200.0))),
            {"partitions that stay pause for less than 200 ms beyond the baseline's p99"},
        ),
        (
            replace(RESULT, pauses=(replace(SHORT, change=replace(CHANGE, stayed=())),)),
            {"in each change, partitions stayed and others moved"},
        ),
        (
            replace(RESULT, takeovers_s=({1: 8.1},)),
            {"takeover after a kill in a transaction within 8 s"},
        ),
    ],
)
def test_each_promise_can_break(result: RebalanceResult, broken: set[str]) -> None:
    assert {promise for promise, is_kept in promises(result).items() if not is_kept} == broken
