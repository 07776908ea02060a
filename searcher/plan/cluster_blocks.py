"""Which blocks of a shard each cluster has, and which blocks a scan goes over. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from carpool.arrays import Int64

GATHER_COST = 3
"""Blocks that are gathered are read, written and read again."""


class ScanBlocks(NamedTuple):
    """The blocks of a scan: all of `span`, or only those of `gathered`, (n,) int64, ascending."""

    span: slice
    gathered: Int64 | None


class ClusterBlocks:
    """The blocks of each cluster. A cluster takes the lowest free blocks, so that spans are short.

    One thread takes and frees, and another asks what to scan of other clusters at the same time.
    """

    def __init__(self, nlist: int, block_count: int) -> None:
        self._is_free = np.ones(block_count, np.bool_)
        self._blocks: dict[int, Int64] = {}
        # First block, end and number of blocks of each cluster.
        self._spans = np.zeros((nlist, 3), np.int64)

    def find_free(self, count: int) -> Int64 | None:
        """Returns `count` free blocks, ascending; None where there are fewer. O(blocks)."""
        free = np.flatnonzero(self._is_free)
        return free[:count] if count <= len(free) else None

    def take(self, cluster: int, blocks: Int64) -> None:
        """Gives free blocks to a cluster that has none."""
        self._is_free[blocks] = False
        self._blocks[cluster] = blocks
        first, end = (blocks[0], blocks[-1] + 1) if len(blocks) else (len(self._is_free), 0)
        self._spans[cluster] = first, end, len(blocks)

    def free(self, cluster: int) -> Int64:
        """Frees the blocks of a cluster, and returns them."""
        blocks = self._blocks.pop(cluster)
        self._is_free[blocks] = True
        return blocks

    def to_scan(self, clusters: Int64) -> ScanBlocks | None:
        """Returns the blocks to scan for clusters that have taken theirs; None: they have no rows.

        `clusters`: (n,) int64, which may repeat. Blocks are gathered where that moves fewer bytes.
        """
        is_asked = np.zeros(len(self._spans), np.bool_)
        is_asked[clusters] = True
        asked = np.flatnonzero(is_asked)
        firsts, ends, counts = self._spans[asked].T
        count = int(counts.sum())
        if not count:
            return None
        span = slice(int(firsts.min()), int(ends.max()))
        if count * GATHER_COST >= span.stop - span.start:
            return ScanBlocks(span, None)
        return ScanBlocks(
            span, np.sort(np.concatenate([self._blocks[one] for one in asked.tolist()]))
        )

    def check_integrity(self) -> None:
        """Raises `AssertionError` where a block is lost, or has two clusters."""
        taken = np.concatenate([np.empty(0, np.int64), *self._blocks.values()])
        assert len(np.unique(taken)) == len(taken), "a block has two clusters"
        assert np.array_equal(np.sort(taken), np.flatnonzero(~self._is_free)), "a block is lost"
