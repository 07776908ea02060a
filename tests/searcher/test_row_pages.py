"""The reads that are planned for rows: every byte of a row, each page once, within a buffer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.extents import HEADER_BYTES
from carpool.disk.pages import PageLayout, choose_layout
from searcher.plan.row_pages import PAGE_BYTES, plan_reads, segment_first_pages

DIMENSIONS = (1, 60, 100, 384, 768, 1000, 1024, 1536, 3000)


@st.composite
def layouts_and_rows(draw: st.DrawFn) -> tuple[PageLayout, list[int], list[int]]:
    dtype = draw(st.sampled_from(["float32", "float16"]))
    layout = choose_layout(draw(st.sampled_from(DIMENSIONS)), dtype)
    segments = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))  # pages of the layout
    rows_max = sum(segments) * layout.rows_per_page - 1
    rows = draw(st.lists(st.integers(0, rows_max), min_size=1, max_size=60))
    return layout, segments, rows


@given(layouts_and_rows(), st.integers(0, 20))
def test_every_byte_of_a_row_is_read_from_its_segment_and_no_page_twice(
    case: tuple[PageLayout, list[int], list[int]], more: int
) -> None:
    layout, segments, numbers = case
    rows = np.sort(np.array(numbers, np.int64))
    sizes = [HEADER_BYTES + pages * layout.page_bytes for pages in segments]
    pages_max = -(-layout.row_bytes // PAGE_BYTES) + 1 + more
    while len(rows):
        planned = plan_reads(rows, layout, segment_first_pages(sizes), pages_max)
        columns = (planned.files, planned.offsets_bytes // PAGE_BYTES, planned.sizes_bytes)
        read: list[tuple[int, int]] = []  # of each page of the buffer
        for file, first, size in zip(*(column.tolist() for column in columns), strict=True):
            assert (file, first - 1) not in read[-1:], "neighbours are one read"
            read += [(file, first + at) for at in range(size // PAGE_BYTES)]
            assert HEADER_BYTES <= first * PAGE_BYTES <= sizes[file] - size
        assert len(set(read)) == len(read) <= pages_max, "a page is read twice, or does not fit"
        for row, start in zip(rows.tolist(), planned.starts.tolist(), strict=False):
            page, slot = divmod(row, layout.rows_per_page)
            file = int(np.searchsorted(np.cumsum(segments), page, side="right"))
            offset = (page - sum(segments[:file])) * layout.page_bytes + slot * layout.row_bytes
            for byte in (0, layout.row_bytes - 1):
                here, at = divmod(start + byte, PAGE_BYTES)
                assert read[here] == (file, (HEADER_BYTES + offset + byte) // PAGE_BYTES)
                assert at == (offset + byte) % PAGE_BYTES
        rows = rows[len(planned.starts) :]
