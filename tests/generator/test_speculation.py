"""The gain that `auto` measures, and the policies by name."""

from __future__ import annotations

from typing import get_args

import pytest

from generator.plan.speculation.factory import SpeculationName, make_policy
from generator.plan.speculation.gain import COMPARED_MIN, KEPT, OTHER_EVERY, MeasuredGain
from generator.plan.speculation.protocol import StartWarmUp
from tests.generator.test_speculation_policies import IDLE, draft


def asked(gain: MeasuredGain, count: int, *, warm_us: int, cold_us: int) -> int:
    """Asks `count` questions, and returns how many might be warmed."""
    warmed = 0
    for _ in range(count):
        chosen = gain.choose()
        warmed += chosen
        gain.measured(chosen, warm_us if chosen else cold_us)
    return warmed


def test_nearly_all_are_warmed_while_that_pays_and_few_while_it_does_not() -> None:
    gain = MeasuredGain()
    assert asked(gain, 2 * COMPARED_MIN, warm_us=100, cold_us=900) == COMPARED_MIN
    assert gain.pays
    assert asked(gain, 10 * OTHER_EVERY, warm_us=100, cold_us=900) == 10 * (OTHER_EVERY - 1)
    asked(gain, 2 * KEPT, warm_us=900, cold_us=900)
    assert gain.pays is False
    assert asked(gain, 10 * OTHER_EVERY, warm_us=900, cold_us=900) == 10
    asked(gain, 10 * KEPT, warm_us=100, cold_us=900)
    assert gain.pays, "the policy notices when warm-ups pay again"


def test_less_than_two_percent_is_no_gain() -> None:
    gain = MeasuredGain()
    asked(gain, 2 * COMPARED_MIN, warm_us=990, cold_us=1_000)
    assert gain.pays is False


@pytest.mark.parametrize("name", get_args(SpeculationName))
def test_a_name_is_a_policy(name: SpeculationName) -> None:
    policy = make_policy(name)
    starts = [
        start
        for done in (1, 2, 3, 4)
        for start in policy.step(draft("abc", done), IDLE)
        if isinstance(start, StartWarmUp)
    ]
    # `likely` and `auto` have seen no search yet.
    assert bool(starts) == (name not in ("none", "auto"))
