"""Intervals, with the values that textbooks print."""

from __future__ import annotations

import pytest

from carpool.evaluation.shares import Share, difference_of, mean_of, share_of


def ends(share: Share) -> tuple[float, float]:
    return share.low, share.high


def test_half_of_a_hundred_is_between_40_and_60_percent() -> None:
    share = share_of([True, False] * 50)
    assert share.share == 0.5
    assert ends(share) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_none_of_ten_may_still_be_28_percent() -> None:
    share = share_of([False] * 10)
    assert ends(share) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_no_values_say_nothing() -> None:
    share = share_of([])
    assert ends(share) == (0.0, 1.0)


def test_a_share_prints_its_interval() -> None:
    assert str(share_of([True] * 10)) == "1.00 (0.72 to 1.00)"


def test_a_mean_of_one_value_says_nothing_of_others() -> None:
    assert mean_of([0.3]) == Share(share=0.3, low=0.0, high=1.0)
    # 0.5 ± 1.96 * 0.5774 / sqrt(4)
    assert ends(mean_of([0.0, 1.0, 0.0, 1.0])) == (0.0, 1.0)
    assert ends(mean_of([0.0, 1.0] * 50)) == pytest.approx((0.5 - 0.0985, 0.5 + 0.0985), abs=1e-4)


def test_the_rating_of_a_prime_minister_falls_by_two_to_six_points() -> None:
    """Agresti, Categorical Data Analysis, 10.1.1, by the interval Wald+2 of Agresti and Min."""
    pairs = [(1.0, 1.0)] * 794 + [(1.0, 0.0)] * 150 + [(0.0, 1.0)] * 86 + [(0.0, 0.0)] * 570
    fall = difference_of(pairs)
    assert fall.share == pytest.approx(-0.04)
    assert ends(fall) == pytest.approx((-0.05868, -0.02122), abs=1e-5)


def test_an_interval_of_differences_is_never_empty() -> None:
    assert ends(difference_of([])) == (-1.0, 1.0)
    same = difference_of([(1.0, 1.0)] * 8)
    assert (same.share, *ends(same)) == pytest.approx((0.0, -0.196, 0.196), abs=1e-3)
    better = difference_of([(0.0, 1.0)] * 8)
    assert better.share == 1.0 and 0 < better.low < better.high <= 1.0
