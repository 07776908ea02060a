"""Slices cover their clusters exactly: every page and every row once, in order, within the
bound.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.extents import plan_extents
from carpool.disk.pages import PageLayout
from searcher.plan.cut import Slices

LAYOUT = PageLayout(dimension=16, vector_dtype="float32", page_bytes=4096)


@given(
    row_counts=st.lists(st.integers(0, 2_000), min_size=1, max_size=12),
    slice_bytes_max=st.integers(1, 40 * 4096),
)
def test_the_slices_of_a_cluster_are_its_pages_and_rows_in_order_each_once(
    row_counts: list[int], slice_bytes_max: int
) -> None:
    extents = plan_extents(LAYOUT, row_counts)
    slices = Slices(extents, LAYOUT, slice_bytes_max)
    assert slices.of_all(range(len(extents))) == tuple(range(len(slices.extents)))
    for cluster, extent in enumerate(extents):
        parts = [slices.extents[number] for number in slices.of(cluster)]
        assert {slices.cluster(number) for number in slices.of(cluster)} == {cluster}
        assert parts and sum(part.row_count for part in parts) == extent.row_count
        page, offset_bytes = extent.first_page, extent.offset_bytes
        for part in parts:
            assert (part.cluster, part.segment) == (extent.cluster, extent.segment)
            assert (part.first_page, part.offset_bytes) == (page, offset_bytes)
            assert part.size_bytes == part.page_count * LAYOUT.page_bytes
            assert LAYOUT.page_count(part.row_count) == part.page_count
            assert part.page_count == 1 or part.size_bytes <= max(
                slice_bytes_max, LAYOUT.page_bytes
            )
            page, offset_bytes = page + part.page_count, offset_bytes + part.size_bytes
        assert page == extent.first_page + extent.page_count
