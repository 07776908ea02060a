"""Spreads are of all values, and percentiles interpolate."""

from __future__ import annotations

import pytest

from bench.core.spread import spread


def test_percentiles_interpolate_between_neighbours_over_all_values() -> None:
    found = spread(range(101))
    assert found is not None
    assert (found.count, found.mean, found.p50, found.p99, found.max) == (101, 50, 50, 99, 100)
    two = spread([10.0, 20.0])
    assert two is not None
    assert (two.p50, two.p99) == (15.0, pytest.approx(19.9))
    assert spread([]) is None
