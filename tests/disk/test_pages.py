"""Rows are read from pages as they were written; a page at another place fails its checksum."""

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
    first_damaged_page,
    page_seed,
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
            layout = PageLayout(
                dimension=dimension,
                vector_dtype=dtype,
                page_bytes=page_bytes,
                has_only_rows=True,
            )
        except ValueError:
            return float("inf")
        return page_bytes * sum(map(layout.page_count, row_counts))

    chosen = choose_layout(dimension, dtype, row_counts).page_bytes
    least = min(map(size_bytes, range(4096, 65537, 4096)))
    assert size_bytes(chosen) <= 1.002 * least
    assert all(size_bytes(page_bytes) > 1.002 * least for page_bytes in range(4096, chosen, 4096))


def test_a_dimension_that_leaves_much_of_a_page_unused_gets_the_best_page() -> None:
    layout = choose_layout(8210, "float32")  # 32,848 bytes a row and its number: 89 % of 36 KiB
    assert (layout.page_bytes, layout.rows_per_page) == (36864, 1)
    with pytest.raises(ValueError, match="does not fit"):
        choose_layout(20_000, "float32")


@given(dimension=st.integers(1, 3000), dtype=dtypes, pages=st.integers(1, 16))
def test_no_further_row_fits_a_page(dimension: int, dtype: VectorDtype, pages: int) -> None:
    try:
        layout = PageLayout(dimension=dimension, vector_dtype=dtype, page_bytes=pages * 4096)
    except ValueError:
        row_bytes = dimension * (4 if dtype == "float32" else 2)
        assert -(-row_bytes // 8) * 8 + 8 + 8 > pages * 4096
        return
    rows, size = layout.rows_per_page, layout.page_bytes - 8
    assert layout.ids_offset_bytes + rows * 8 <= size
    assert -(-(rows + 1) * layout.row_bytes // 8) * 8 + (rows + 1) * 8 > size
    assert layout.ids_offset_bytes % 8 == 0


@given(
    dimension=st.integers(1, 70),
    dtype=dtypes,
    count=st.integers(0, 300),
    cut=st.integers(0, 20),
    seed=st.integers(0, 2**64 - 1),
)
def test_rows_come_back_from_pages_in_one_piece_or_more(
    dimension: int, dtype: VectorDtype, count: int, cut: int, seed: int
) -> None:
    numbers = np.random.default_rng(dimension * 1000 + count)
    layout = PageLayout(dimension=dimension, vector_dtype=dtype, page_bytes=4096)
    vectors = numbers.standard_normal((count, dimension)).astype(np.float32)
    rows = numbers.integers(0, 2**40, count)
    pages = encode_pages(layout, vectors, rows, seed=seed)
    assert pages.shape == (layout.page_count(count), 4096)
    assert first_damaged_page(pages, seed=seed) is None
    pieces = tuple(piece for piece in (pages[:cut], pages[cut:]) if len(piece))
    found = dense(ClusterPages(7, layout, count, pieces))
    assert found.cluster == 7
    assert found.vectors.dtype == np.float32
    assert np.array_equal(
        found.vectors,
        vectors if dtype == "float32" else vectors.astype(np.float16).astype(np.float32),
    )
    assert np.array_equal(found.rows, rows)
    if cut:
        assert first_damaged_page(pages[cut:], seed=seed, first_page=cut) is None


def test_a_vector_and_its_row_number_are_in_one_page() -> None:
    layout = PageLayout(dimension=300, vector_dtype="float32", page_bytes=4096)
    vectors = np.arange(2100, dtype=np.float32).reshape(7, 300)
    pages = encode_pages(layout, vectors, np.arange(7) + 100, seed=1)
    for row in range(7):
        page, slot = divmod(row, layout.rows_per_page)
        start = slot * 1200
        assert pages[page, start : start + 1200].tobytes() == vectors[row].tobytes()
        start = layout.ids_offset_bytes + slot * 8
        assert int.from_bytes(pages[page, start : start + 8].tobytes(), "little") == 100 + row


def test_a_checksum_matches_only_at_the_place_of_its_page_in_cluster_segment_and_build() -> None:
    layout = PageLayout(dimension=8, vector_dtype="float32", page_bytes=4096)
    place = {"build_id": 2**64 - 1, "segment": 3, "cluster": 5}
    vectors, rows = np.ones((300, 8), np.float32), np.arange(300)
    pages = encode_pages(layout, vectors, rows, seed=page_seed(**place))
    assert first_damaged_page(pages, seed=page_seed(**place)) is None
    for name in place:
        other = page_seed(**{**place, name: place[name] - 1})
        assert first_damaged_page(pages, seed=other) == 0
    assert first_damaged_page(pages, seed=page_seed(**place), first_page=1) == 0
    swapped = np.concatenate((pages[:1], pages[2:3], pages[1:2]))
    assert first_damaged_page(swapped, seed=page_seed(**place)) == 1


@given(
    place=st.integers(0, 2 * 4096 - 1),
    change=st.integers(1, 255),
    count=st.sampled_from([0, 1, 12, 15]),
)
def test_any_changed_byte_of_a_page_is_found_also_in_padding_and_checksum(
    place: int, change: int, count: int
) -> None:
    layout = PageLayout(dimension=100, vector_dtype="float32", page_bytes=4096)
    pages = encode_pages(layout, np.ones((count, 100), np.float32), np.arange(count), seed=9)
    place %= pages.size
    pages.reshape(-1)[place] ^= change
    assert first_damaged_page(pages, seed=9) == place // 4096


@pytest.mark.parametrize("rows", [[-1, 0], [0, 2**40], [0]])
def test_wrong_row_numbers_are_not_written(rows: list[int]) -> None:
    layout = PageLayout(dimension=3, vector_dtype="float32", page_bytes=4096)
    with pytest.raises(ValueError, match="row numbers"):
        encode_pages(layout, np.ones((2, 3), np.float32), np.array(rows), seed=0)


@pytest.mark.parametrize("page_bytes", [0, 4095, 6000])
def test_pages_that_are_not_aligned_or_too_small_for_a_row_are_refused(page_bytes: int) -> None:
    with pytest.raises(ValueError, match="too small"):
        PageLayout(dimension=8, vector_dtype="float32", page_bytes=page_bytes)
