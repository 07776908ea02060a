"""The memory of a shard on a GPU: never more than the budget, and no block has two clusters."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from searcher.plan.cluster_blocks import ClusterBlocks
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


def blocks_with(*counts: int) -> ClusterBlocks:
    """A hundred blocks, of which clusters 0, 1, ... have taken `counts`."""
    blocks = ClusterBlocks(nlist=20, block_count=100)
    for cluster, count in enumerate(counts):
        take(blocks, cluster, count)
    return blocks


def take(blocks: ClusterBlocks, cluster: int, count: int) -> None:
    found = blocks.find_free(count)
    assert found is not None
    blocks.take(cluster, found)


def test_all_blocks_between_are_scanned_where_a_third_is_asked_for() -> None:
    blocks = blocks_with(10, 38, 10)
    assert blocks.to_scan(np.array([0, 2, 0])) == (slice(0, 58), None)
    assert blocks.to_scan(np.array([1])) == (slice(10, 48), None)


def test_blocks_are_gathered_where_fewer_than_a_third_are_asked_for() -> None:
    scanned = blocks_with(10, 41, 10).to_scan(np.array([2, 0]))
    assert scanned is not None and scanned.gathered is not None
    assert scanned.span == slice(0, 61)
    assert scanned.gathered.tolist() == [*range(10), *range(51, 61)]


def test_a_cluster_takes_the_lowest_free_blocks() -> None:
    blocks = blocks_with(3, 4, 5)
    assert blocks.free(1).tolist() == [3, 4, 5, 6]
    assert blocks.find_free(93) is None
    take(blocks, 7, 6)
    blocks.check_integrity()
    assert blocks.free(7).tolist() == [3, 4, 5, 6, 12, 13]


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 40)), max_size=60))
def test_blocks_are_never_lost_or_given_twice(steps: list[tuple[int, int]]) -> None:
    blocks, taken = blocks_with(), dict[int, list[int]]()
    for cluster, count in steps:
        if cluster in taken:
            assert blocks.free(cluster).tolist() == taken.pop(cluster)
        elif (found := blocks.find_free(count)) is None:
            assert sum(map(len, taken.values())) + count > 100
        else:
            blocks.take(cluster, found)
            taken[cluster] = found.tolist()
        blocks.check_integrity()
        asked = sorted(taken)[::2]
        rows = {block for one in asked for block in taken[one]}
        scanned = blocks.to_scan(np.array(asked, np.int64))
        if scanned is None:
            assert not rows
        elif scanned.gathered is not None:
            assert scanned.gathered.tolist() == sorted(rows)
        else:
            assert (scanned.span.start, scanned.span.stop) == (min(rows), max(rows) + 1)
