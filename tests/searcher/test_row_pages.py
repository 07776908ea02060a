"""The reads that are planned for rows: every byte of a row, each page once, within a buffer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.extents import HEADER_BYTES
from carpool.disk.pages import PageLayout, choose_layout
from searcher.plan.row_pages import (
    PAGE_BYTES,
    plan_reads,
    row_places,
    segment_first_pages,
    split_rows,
)

DIMENSIONS = (1, 60, 100, 384, 768, 1000, 1024, 1536, 3000)


@st.composite
def layouts_and_rows(draw: st.DrawFn) -> tuple[PageLayout, list[int], list[int]]:
    dtype = draw(st.sampled_from(["float32", "float16"]))
    layout = choose_layout(draw(st.sampled_from(DIMENSIONS)), dtype)
    segments = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))  # pages of the layout
    rows_max = sum(segments) * layout.rows_per_page - 1
    rows = draw(st.lists(st.integers(0, rows_max), min_size=1, max_size=60))
    return layout, segments, rows


@given(layouts_and_rows())
def test_every_byte_of_a_row_is_read_from_its_segment_and_no_page_twice(
    case: tuple[PageLayout, list[int], list[int]],
) -> None:
    layout, segments, numbers = case
    rows = np.array(numbers, np.int64)
    sizes = [HEADER_BYTES + pages * layout.page_bytes for pages in segments]
    places = row_places(layout, rows)
    planned = plan_reads(places, segment_first_pages(sizes))
    assert len(np.unique(planned.pages)) == len(planned.pages)
    read: dict[tuple[int, int], int] = {}  # file and offset -> page in the buffer
    at = 0
    for file, offset, size in zip(
        planned.files.tolist(),
        planned.offsets_bytes.tolist(),
        planned.sizes_bytes.tolist(),
        strict=True,
    ):
        assert offset >= HEADER_BYTES and offset + size <= sizes[file] and size % PAGE_BYTES == 0
        for page in range(size // PAGE_BYTES):
            assert (file, offset + page * PAGE_BYTES) not in read, "a page is read twice"
            read[file, offset + page * PAGE_BYTES] = at
            at += 1
    assert at == len(planned.pages)
    for row in numbers:
        page, slot = divmod(row, layout.rows_per_page)
        file = int(np.searchsorted(np.cumsum(segments), page, side="right"))
        start = (page - sum(segments[:file])) * layout.page_bytes + slot * layout.row_bytes
        first = HEADER_BYTES + start // PAGE_BYTES * PAGE_BYTES
        last = HEADER_BYTES + (start + layout.row_bytes - 1) // PAGE_BYTES * PAGE_BYTES
        wanted = [read.get((file, offset), -1) for offset in range(first, last + 1, PAGE_BYTES)]
        assert -1 not in wanted, f"row {row} is not read whole"
        assert wanted == list(range(wanted[0], wanted[0] + len(wanted)))


@given(layouts_and_rows(), st.integers(0, 20))
def test_parts_fit_the_buffer_and_have_every_row_once(
    case: tuple[PageLayout, list[int], list[int]], more: int
) -> None:
    layout, segments, numbers = case
    rows = np.array(numbers, np.int64)
    pages_max = -(-layout.row_bytes // PAGE_BYTES) + 1 + more
    parts = list(split_rows(rows, layout, pages_max))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(rows)))
    sizes = [HEADER_BYTES + pages * layout.page_bytes for pages in segments]
    for part in parts:
        planned = plan_reads(row_places(layout, rows[part]), segment_first_pages(sizes))
        assert len(planned.pages) <= pages_max
