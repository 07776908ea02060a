"""Which way products are computed: so that all numbers of queries together take the least time, as
measured once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from carpool.disk.pages import PageLayout, UInt8, VectorDtype, choose_layout
from searcher.scoring import flat
from searcher.scoring.flat import QUERIES_FEW_MAX, queries_few


@pytest.fixture(autouse=True)
def _measured_anew() -> Iterator[None]:
    flat._measured.cache_clear()
    yield
    flat._measured.cache_clear()


@pytest.mark.parametrize(
    ("dots", "few"),
    [
        ([5, 5, 5, 5, 5, 5, 5], 0),
        ([1, 1, 1, 1, 1, 1, 1], QUERIES_FEW_MAX),
        ([1, 2, 5, 6, 7, 8, 9], 2),
        ([3.1, 1, 1, 2, 6, 7, 8], 4),  # the first was disturbed
        ([2.9, 5, 6, 7, 8, 9, 9], 1),
    ],
)
def test_dot_products_are_taken_up_to_where_they_cost_the_least_altogether(
    dots: list[float], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def times_s(layout: PageLayout, counts: Iterable[int]) -> dict[int, tuple[float, float]]:
        return {count: (dots[count - 1], 3.0) for count in counts}

    monkeypatch.setattr(flat, "_times_s", times_s)
    assert queries_few(choose_layout(384, "float32", has_only_rows=False)) == few


def test_the_way_that_takes_longer_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(flat.time, "perf_counter", lambda: clock_s[0])

    def takes(seconds: float) -> object:
        def write(way: object, parts: list[UInt8], scores: flat.Float32) -> None:
            clock_s[0] += seconds

        return write

    monkeypatch.setattr(flat._DotProducts, "write", takes(1.0))
    monkeypatch.setattr(flat._MatrixProducts, "write", takes(2.0))
    assert queries_few(choose_layout(384, "float32", has_only_rows=False)) == QUERIES_FEW_MAX
    flat._measured.cache_clear()
    monkeypatch.setattr(flat._DotProducts, "write", takes(3.0))
    assert queries_few(choose_layout(384, "float32", has_only_rows=False)) == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dimension", [1, 64, 384, 4000])
def test_it_is_measured_for_every_layout_and_once(
    dimension: int, dtype: VectorDtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "TRIAL_BYTES", 1 << 18)
    layout = choose_layout(dimension, dtype, has_only_rows=False)
    few = queries_few(layout)
    assert 0 <= few <= QUERIES_FEW_MAX
    monkeypatch.setattr(flat, "_times_s", None)
    assert queries_few(layout) == few
