"""When questions arrive: schedules are pure, seeded, and keep their rate."""

from __future__ import annotations

import statistics
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.load import even, poisson

RATES = st.floats(min_value=0.01, max_value=10_000)


@given(rate=RATES, seed=st.integers(0, 2**32))
def test_a_poisson_schedule_never_runs_backwards_and_is_the_same_for_a_seed(
    rate: float, seed: int
) -> None:
    times = list(islice(poisson(rate, seed), 50))
    assert times == sorted(times)
    assert times[0] >= 0
    assert times == list(islice(poisson(rate, seed), 50))


def test_a_poisson_schedule_keeps_its_rate_and_spread_over_many_arrivals() -> None:
    times = list(islice(poisson(50, seed=7), 20_000))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # The mean of an exponential of rate 50 is 20,000 us, and so is its deviation; of 20,000 both
    # are within 3 %.
    assert statistics.mean(gaps) == pytest.approx(20_000, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(20_000, rel=0.03)


@given(rate=RATES, count=st.integers(1, 200))
def test_an_even_schedule_does_not_drift(rate: float, count: int) -> None:
    times = list(islice(even(rate), count))
    assert times[0] == 0
    assert abs(times[-1] - (count - 1) * 1_000_000 / rate) <= 1
