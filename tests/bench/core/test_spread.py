"""Spreads are of all values, and percentiles interpolate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.spread import spread


def test_percentiles_interpolate_between_neighbours_over_all_values() -> None:
    found = spread(range(101))
    assert found is not None
    assert (found.count, found.mean, found.p50, found.p99, found.max) == (101, 50, 50, 99, 100)
    two = spread([10.0, 20.0])
    assert two is not None
    assert (two.p50, two.p99) == (15.0, pytest.approx(19.9))
    assert spread([]) is None


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200))
def test_a_percentile_is_what_sorting_gives(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    ordered = sorted(values)
    place = 0.99 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    expected = ordered[below] + (ordered[above] - ordered[below]) * (place - below)
    assert found.p99 == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert found.max == ordered[-1]
