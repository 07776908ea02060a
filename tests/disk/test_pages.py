"""Rows are read from pages as they were written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.pages import (
    ClusterPages,
    PageLayout,
    VectorDtype,
    choose_layout,
    dense,
    encode_pages,
)

dtypes = st.sampled_from(["float32", "float16"])


@given(
    dimension=st.integers(1, 2000),
    dtype=dtypes,
    row_counts=st.lists(st.integers(0, 2000), min_size=1, max_size=20),
)
def test_the_smallest_page_within_the_margin_of_the_best_size_is_chosen(
    dimension: int, dtype: VectorDtype, row_counts: list[int]
) -> None:
    def size_bytes(page_bytes: int) -> float:
        try:
            layout = PageLayout(dimension=dimension, vector_dtype=dtype, page_bytes=page_bytes)
        except ValueError:
            return float("inf")
        return page_bytes * sum(map(layout.page_count, row_counts))

    chosen = choose_layout(dimension, dtype, row_counts).page_bytes
    least = min(map(size_bytes, range(4096, 65537, 4096)))
    assert size_bytes(chosen) <= 1.002 * least
    assert all(size_bytes(page_bytes) > 1.002 * least for page_bytes in range(4096, chosen, 4096))


def test_a_dimension_that_leaves_much_of_a_page_unused_gets_the_best_page() -> None:
    layout = choose_layout(8210, "float32")  # 32,840 bytes a row: 89 % of 36 KiB
    assert (layout.page_bytes, layout.rows_per_page) == (36864, 1)
    with pytest.raises(ValueError, match="does not fit"):
        choose_layout(20_000, "float32")


@given(
    dimension=st.integers(1, 70),
    dtype=dtypes,
    count=st.integers(0, 300),
    cut=st.integers(0, 20),
    first_page=st.integers(0, 1 << 30),
)
def test_rows_come_back_from_pages_in_one_piece_or_more(
    dimension: int, dtype: VectorDtype, count: int, cut: int, first_page: int
) -> None:
    numbers = np.random.default_rng(dimension * 1000 + count)
    layout = PageLayout(dimension=dimension, vector_dtype=dtype, page_bytes=4096)
    vectors = numbers.standard_normal((count, dimension)).astype(np.float32)
    pages = encode_pages(layout, vectors)
    assert pages.shape == (layout.page_count(count), 4096)
    pieces = tuple(piece for piece in (pages[:cut], pages[cut:]) if len(piece))
    found = dense(ClusterPages(7, layout, count, pieces, first_page))
    assert found.cluster == 7
    assert found.vectors.dtype == np.float32
    assert np.array_equal(
        found.vectors,
        vectors if dtype == "float32" else vectors.astype(np.float16).astype(np.float32),
    )
    assert np.array_equal(found.rows, first_page * layout.rows_per_page + np.arange(count))


@pytest.mark.parametrize("page_bytes", [0, 4095, 6000])
def test_pages_that_are_not_aligned_or_too_small_for_a_row_are_refused(page_bytes: int) -> None:
    with pytest.raises(ValueError, match="too small"):
        PageLayout(dimension=8, vector_dtype="float32", page_bytes=page_bytes)
