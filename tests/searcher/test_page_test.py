"""Page's test, over values that stay, and values that fall."""

from __future__ import annotations

import numpy as np
import pytest

from searcher.plan.page_test import PageTest


def alarm_after(values: np.ndarray, test: PageTest) -> int | None:
    """Feeds values one by one and returns the number of the first that raises an alarm."""
    for number, value in enumerate(values.tolist()):
        if test.has_fallen([value]):
            return number
    return None


@pytest.mark.parametrize("seed", range(2))
def test_values_that_stay_raise_no_alarm_among_ten_thousand(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.4, 0.2, 10_000)
    assert alarm_after(values, PageTest()) is None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("fall", "values_max"), [(0.2, 60), (0.1, 300)])
def test_a_fall_is_found_soon(seed: int, fall: float, values_max: int) -> None:
    random = np.random.default_rng(seed)
    test = PageTest()
    assert alarm_after(random.normal(0.4, 0.2, 500), test) is None
    found = alarm_after(random.normal(0.4 - fall, 0.2, 500), test)
    assert found is not None and found <= values_max


def test_a_rise_a_small_fall_and_equal_values_raise_no_alarm() -> None:
    random = np.random.default_rng(0)
    for values in (
        random.normal(0.6, 0.2, 3_000),
        random.normal(0.38, 0.2, 3_000),
        np.full(1_000, 0.4),
    ):
        test = PageTest()
        assert not test.has_fallen(random.normal(0.4, 0.2, 300).tolist())
        assert alarm_after(values, test) is None
    assert alarm_after(np.full(1_000, 0.4), PageTest()) is None
