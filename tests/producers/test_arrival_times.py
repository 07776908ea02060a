"""When questions arrive: schedules are pure, seeded, and keep their rate."""

from __future__ import annotations

import statistics
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.errors import ConfigError
from producers.arrival_times import bounded, even, poisson

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


@given(limit=st.one_of(st.none(), st.integers(0, 50)), duration=st.floats(0, 3))
def test_a_bounded_schedule_is_a_prefix_within_both_bounds(
    limit: int | None, duration: float
) -> None:
    whole = list(islice(even(20), 200))
    expected = [time for time in whole if time < duration * 1_000_000][:limit]
    assert list(bounded(iter(whole), duration_s=duration, limit=limit)) == expected


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_sends_nothing_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        next(poisson(rate, 0))
    with pytest.raises(ConfigError):
        next(even(rate))
