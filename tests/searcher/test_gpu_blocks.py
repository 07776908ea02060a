"""The memory of a shard on a GPU: never more than the budget, and no block has two clusters."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from searcher.plan.cluster_blocks import GATHER_COST, ClusterBlocks
from searcher.plan.gpu_blocks import (
    BLOCK_ROWS,
    QUERIES_MAX,
    block_bytes,
    divide_gpu_memory,
    gpu_bytes_for,
    holds_all,
)


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


def test_a_shard_of_the_bytes_for_all_clusters_holds_them_all() -> None:
    for clusters, stored_bytes in ((500, 1), (4_000, 2)):
        row_counts = [300] * clusters
        size = clusters * 10 * block_bytes(dimension=384, stored_bytes=stored_bytes)
        bytes_max = gpu_bytes_for(size, clusters)
        assert holds_all(bytes_max, row_counts, dimension=384, stored_bytes=stored_bytes)
        assert not holds_all(size, row_counts, dimension=384, stored_bytes=stored_bytes)


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 40)), max_size=60))
def test_blocks_are_never_lost_or_given_twice_and_scans_move_few_bytes(
    steps: list[tuple[int, int]],
) -> None:
    blocks, taken = ClusterBlocks(nlist=20, block_count=100), dict[int, list[int]]()
    for cluster, count in steps:
        free = sorted({*range(100)}.difference(*taken.values()))
        if cluster in taken:
            assert blocks.free(cluster).tolist() == taken.pop(cluster)
        elif (found := blocks.find_free(count)) is None:
            assert count > len(free)
        else:
            assert found.tolist() == free[:count]
            blocks.take(cluster, found)
            taken[cluster] = found.tolist()
        blocks.check_integrity()
        asked = sorted(taken)[::2]
        rows = sorted({block for one in asked for block in taken[one]})
        scanned = blocks.to_scan(np.array(asked * 2, np.int64))
        if scanned is None:
            assert not rows
            continue
        width = rows[-1] + 1 - rows[0]
        assert scanned.span == slice(rows[0], rows[-1] + 1)
        if scanned.gathered is not None:
            assert scanned.gathered.tolist() == rows
        assert (scanned.gathered is None) == (GATHER_COST * len(rows) >= width)
