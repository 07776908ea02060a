"""How the GPU memory of a shard is divided, and in which pieces its blocks are scanned. Pure.

The arena is blocks of `BLOCK_ROWS` rows. A cluster takes any free blocks. All numbers of bytes are
of device memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_ROWS = 32
"""Small blocks waste few rows at the end of a cluster; each has one estimate a query in a scan."""
QUERIES_MAX = 64
"""Queries of one pass over the vectors; more take several passes."""
BOOKS_BYTES = 3 * 8 + QUERIES_MAX * 5
"""Of a block without its rows: its cluster, first row and row count, and in a scan a best score and
a flag of each query.
"""
STAGING_BYTES_MAX = 4 << 20
SCRATCH_BYTES_MAX = 64 << 20
SCRATCH_SHARE = 8
"""At most this part of the budget is scratch: scores of rows, and blocks that were gathered."""


@dataclass(frozen=True, kw_only=True)
class GpuBlocks:
    """The division of a budget.

    `rows_bytes`: the rows of a block as they are stored; `copied_bytes`: what a block takes that is
    gathered, or converted for the product; `staging_blocks`: blocks that are loaded at a time.
    """

    count: int
    rows_bytes: int
    copied_bytes: int
    scratch_bytes: int
    staging_blocks: int

    @property
    def block_bytes(self) -> int:
        """What a block takes, with its books."""
        return self.rows_bytes + BOOKS_BYTES

    @property
    def capacity_bytes(self) -> int:
        """What all blocks take."""
        return self.count * self.block_bytes

    def chunk_blocks(self, query_count: int, *, is_copied: bool) -> int:
        """Returns how many blocks are scored at a time: half of the scratch is for scores, half for
        copies.
        """
        scores_bytes = query_count * BLOCK_ROWS * 4
        blocks = self.scratch_bytes // 2 // scores_bytes
        if is_copied:
            blocks = min(blocks, self.scratch_bytes // 2 // self.copied_bytes)
        return max(1, blocks)

    def queries_at_once(self, count: int) -> int:
        """Returns how many queries a pass has where each proposes `count` rows.

        The rows of the `count` best blocks of each are scored again.
        """
        wanted = self.scratch_bytes // 2 // (count * BLOCK_ROWS * 4)
        return max(1, min(wanted, QUERIES_MAX))


LIBRARY_BYTES = 64 << 20
"""The workspace of cuBLAS, 32 MiB on a Hopper, and small temporary arrays."""


def gpu_bytes_for(clusters_bytes: int, nlist: int) -> int:
    """Returns how many bytes of a GPU leave `clusters_bytes` for clusters: a `shard_bytes`."""
    scan_bytes = SCRATCH_BYTES_MAX + STAGING_BYTES_MAX + QUERIES_MAX * (nlist + 1)
    return clusters_bytes + scan_bytes + LIBRARY_BYTES


def holds_all(
    bytes_max: int, row_counts: Sequence[int], *, dimension: int, stored_bytes: int
) -> bool:
    """Returns whether a shard of `bytes_max` holds all clusters, each of so many rows.

    Products take numbers of 2 bytes.
    """
    blocks = divide_gpu_memory(
        bytes_max - LIBRARY_BYTES,
        dimension=dimension,
        stored_bytes=stored_bytes,
        computed_bytes=2,
        nlist=len(row_counts),
    )
    return blocks is not None and sum(map(blocks_of, row_counts)) <= blocks.count


def block_bytes(*, dimension: int, stored_bytes: int) -> int:
    """Returns what a block takes, with its books."""
    return BLOCK_ROWS * dimension * stored_bytes + BOOKS_BYTES


def blocks_of(row_count: int) -> int:
    """Returns how many blocks a cluster of `row_count` rows takes."""
    return -(-row_count // BLOCK_ROWS)


def divide_gpu_memory(
    bytes_max: int, *, dimension: int, stored_bytes: int, computed_bytes: int, nlist: int
) -> GpuBlocks | None:
    """Returns the division of `bytes_max`, or None where it is too small for one block.

    A number takes `stored_bytes` as it is stored, and `computed_bytes` in products. The index has
    `nlist` clusters, each with a flag of each query.
    """
    rows_bytes = BLOCK_ROWS * dimension * stored_bytes
    copied_bytes = BLOCK_ROWS * dimension * computed_bytes
    if stored_bytes != computed_bytes:
        copied_bytes += rows_bytes
    block_bytes = rows_bytes + BOOKS_BYTES
    share = bytes_max // SCRATCH_SHARE
    staging_blocks = max(1, min(share, STAGING_BYTES_MAX) // rows_bytes)
    least = 2 * max(copied_bytes, QUERIES_MAX * BLOCK_ROWS * 4)
    scratch_bytes = max(least, min(share, SCRATCH_BYTES_MAX))
    left = bytes_max - scratch_bytes - staging_blocks * rows_bytes - QUERIES_MAX * (nlist + 1)
    if left < block_bytes:
        return None
    return GpuBlocks(
        count=left // block_bytes,
        rows_bytes=rows_bytes,
        copied_bytes=copied_bytes,
        scratch_bytes=scratch_bytes,
        staging_blocks=staging_blocks,
    )
