"""How many rows are sampled, and which clusters one pass collects."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.pages import PageLayout, choose_layout
from indexer.plan.passes import (
    encode_bytes,
    memory_min_bytes,
    pass_bytes,
    plan_passes,
    sample_rows_max,
)

LAYOUT = PageLayout(dimension=16, vector_dtype="float32", page_bytes=4096)


def test_a_sample_is_bounded_by_what_is_wished_what_there_is_and_what_fits() -> None:
    assert sample_rows_max(10_000, 10, dimension=4, rows_per_cluster=100, bytes_max=1 << 20) == 1000
    assert sample_rows_max(700, 10, dimension=4, rows_per_cluster=100, bytes_max=1 << 20) == 700
    assert sample_rows_max(10_000, 10, dimension=4, rows_per_cluster=100, bytes_max=800) == 50
    with pytest.raises(ValueError, match="9 rows cannot train 10 clusters"):
        sample_rows_max(10_000, 10, dimension=4, rows_per_cluster=100, bytes_max=159)


@given(
    counts=st.lists(st.integers(0, 3000), min_size=1, max_size=50),
    spare_bytes=st.integers(0, 1 << 20),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_passes_cover_every_cluster_once_in_order_and_none_outgrows_memory(
    counts: list[int], spare_bytes: int, dtype: str
) -> None:
    layout = choose_layout(48, dtype)  # type: ignore[arg-type]
    least_bytes = memory_min_bytes(layout, counts)
    passes = plan_passes(layout, counts, memory_bytes=least_bytes + spare_bytes)
    assert [position for taken in passes for position in taken] == list(range(len(counts)))

    def used_bytes(positions: range) -> int:
        held_bytes = sum(pass_bytes(layout, counts[position]) for position in positions)
        return held_bytes + max(encode_bytes(layout, counts[position]) for position in positions)

    assert all(used_bytes(taken) <= least_bytes + spare_bytes for taken in passes)
    for taken, following in itertools.pairwise(passes):
        assert used_bytes(range(taken.start, following.start + 1)) > least_bytes + spare_bytes
