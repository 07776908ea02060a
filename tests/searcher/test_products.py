"""Which way products are computed: the faster one, up to the first number of queries where it is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from carpool.disk.pages import PageLayout, UInt8, VectorDtype, choose_layout
from searcher import products
from searcher.products import QUERIES_FEW_MAX, queries_few


@pytest.fixture(autouse=True)
def _measured_anew() -> Iterator[None]:
    queries_few.cache_clear()
    yield
    queries_few.cache_clear()


@pytest.mark.parametrize(
    ("faster_for", "few"),
    [(set(), 0), ({1}, 1), ({1, 2, 4}, 2), ({2}, 0), (set(range(1, 20)), QUERIES_FEW_MAX)],
)
def test_dot_products_are_taken_up_to_the_first_number_of_queries_for_which_they_are_slower(
    faster_for: set[int], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def are_faster(layout: PageLayout, pages: UInt8, count: int) -> bool:
        return count in faster_for

    monkeypatch.setattr(products, "_are_dot_products_faster", are_faster)
    assert queries_few(choose_layout(384, "float32")) == few


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dimension", [1, 64, 384, 4000])
def test_it_is_measured_for_every_layout_and_once(
    dimension: int, dtype: VectorDtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "TRIAL_BYTES", 1 << 18)
    layout = choose_layout(dimension, dtype)
    few = queries_few(layout)
    assert 0 <= few <= QUERIES_FEW_MAX
    monkeypatch.setattr(products, "_are_dot_products_faster", None)
    assert queries_few(layout) == few
