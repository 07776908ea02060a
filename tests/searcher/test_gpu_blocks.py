"""The memory of a shard on a GPU: never more than the budget, whatever is scanned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from searcher.plan.gpu_blocks import (
    BLOCK_ROWS,
    QUERIES_MAX,
    blocks_of,
    divide_gpu_memory,
    is_gathered,
)

MIB = 1 << 20


@given(
    bytes_max=st.integers(0, 8 << 30),
    dimension=st.integers(8, 4096),
    stored_bytes=st.sampled_from([1, 2]),
    nlist=st.integers(1, 100_000),
    query_count=st.integers(1, QUERIES_MAX),
    count=st.integers(1, 2048),
)
def test_blocks_and_what_a_scan_needs_fit_the_budget(
    bytes_max: int, dimension: int, stored_bytes: int, nlist: int, query_count: int, count: int
) -> None:
    blocks = divide_gpu_memory(
        bytes_max,
        dimension=dimension,
        stored_bytes=stored_bytes,
        computed_bytes=2,
        nlist=nlist,
    )
    row_bytes = dimension * stored_bytes
    if blocks is None:
        least = 4 * BLOCK_ROWS * dimension * 2 + 2 * QUERIES_MAX * (4 * BLOCK_ROWS + 8 + nlist)
        assert bytes_max < least + 3 * BLOCK_ROWS * dimension * stored_bytes
        return
    arena = blocks.count * BLOCK_ROWS * row_bytes
    books = blocks.count * 3 * 8
    staging = blocks.staging_blocks * BLOCK_ROWS * row_bytes
    chunk = blocks.chunk_blocks(query_count, is_copied=True)
    copies = chunk * BLOCK_ROWS * dimension * (2 + (stored_bytes if stored_bytes != 2 else 0))
    scores = query_count * chunk * BLOCK_ROWS * 4
    best = query_count * blocks.count * (4 + 1)
    flags = query_count * (nlist + 1)
    assert arena + books + staging + copies + scores + best + flags <= bytes_max
    at_once = blocks.queries_at_once(count)
    again = at_once * count * BLOCK_ROWS * 4
    assert at_once == 1 or 2 * again <= blocks.scratch_bytes
    assert blocks.capacity_bytes == blocks.count * blocks.block_bytes


def test_a_budget_of_a_gibibyte_is_nearly_all_for_rows() -> None:
    blocks = divide_gpu_memory(
        1024 * MIB, dimension=384, stored_bytes=2, computed_bytes=2, nlist=4000
    )
    assert blocks is not None
    assert blocks.count * BLOCK_ROWS * 768 > 0.9 * 1024 * MIB
    assert blocks.chunk_blocks(32, is_copied=False) * BLOCK_ROWS == 262_144


def test_a_cluster_takes_whole_blocks() -> None:
    assert [blocks_of(rows) for rows in (0, 1, 32, 33, 64, 1000)] == [0, 1, 1, 2, 2, 32]


def test_blocks_are_gathered_where_fewer_than_a_third_are_asked_for() -> None:
    assert is_gathered(33, 100)
    assert not is_gathered(34, 100)
    assert not is_gathered(1, 1)
