"""Wilson's interval, with the values that its textbooks print."""

from __future__ import annotations

import pytest

from bench.answers.rows import share_of


def test_half_of_a_hundred_is_between_40_and_60_percent() -> None:
    share = share_of([True, False] * 50)
    assert share.share == 0.5
    assert (share.low, share.high) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_none_of_ten_may_still_be_28_percent() -> None:
    share = share_of([False] * 10)
    assert (share.low, share.high) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_no_values_say_nothing() -> None:
    share = share_of([])
    assert (share.low, share.high) == (0.0, 1.0)


def test_a_share_prints_its_interval() -> None:
    assert str(share_of([True] * 10)) == "1.00 (0.72 to 1.00)"
