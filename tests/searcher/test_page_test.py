"""Page's test: falls are found soon, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from searcher.plan.page_test import PageTest


def alarm_after(values: np.ndarray, test: PageTest) -> int | None:
    """Feeds values one by one and returns the number of the first that raises an alarm."""
    for number, value in enumerate(values.tolist()):
        if test.has_fallen(value, 1):
            return number
        test.learn([value])
    return None


@pytest.mark.parametrize("seed", range(10))
def test_values_that_stay_raise_no_alarm_among_ten_thousand(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.4, 0.2, 10_000)
    assert alarm_after(values, PageTest(0.4, 250)) is None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("fall", "values_max"), [(0.2, 50), (0.1, 250)])
def test_a_fall_is_found_soon(seed: int, fall: float, values_max: int) -> None:
    random = np.random.default_rng(seed)
    test = PageTest(0.4, 250)
    assert alarm_after(random.normal(0.4, 0.2, 500), test) is None
    found = alarm_after(random.normal(0.4 - fall, 0.2, 500), test)
    assert found is not None
    assert found <= values_max


@pytest.mark.parametrize("seed", range(10))
def test_without_an_expected_mean_it_is_learnt(seed: int) -> None:
    random = np.random.default_rng(seed)
    test = PageTest()
    assert alarm_after(random.normal(0.4, 0.2, 500), test) is None
    assert alarm_after(random.normal(0.2, 0.2, 60), test) is not None


def test_a_rise_and_small_falls_raise_no_alarm() -> None:
    random = np.random.default_rng(0)
    test = PageTest(0.4, 250)
    assert alarm_after(random.normal(0.6, 0.2, 3_000), test) is None
    test = PageTest(0.4, 250)
    assert alarm_after(random.normal(0.38, 0.2, 3_000), test) is None


def test_values_that_are_all_equal_raise_no_alarm() -> None:
    assert alarm_after(np.full(1_000, 0.4), PageTest(0.4, 250)) is None


def test_several_values_at_once_count_as_many() -> None:
    random = np.random.default_rng(0)
    alone, together = PageTest(0.5, 250), PageTest(0.5, 250)
    for test in (alone, together):
        test.learn(random.normal(0.5, 0.1, 100).tolist())
    # Each value adds the same to the sum, so the alarm comes in the same ten.
    single = next(number for number in range(1, 1_000) if alone.has_fallen(0.4, 1))
    tens = next(number for number in range(1, 1_000) if together.has_fallen(0.4, 10))
    assert tens == -(-single // 10)
