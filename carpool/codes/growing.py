"""Codes of rows that come one by one: each cluster is a list of blocks in one piece of memory.

The number of a row is its *place*: 16 times its block, and where it is in it. Rows are only added,
so a `View` that was taken before sees what it saw, as long as its mask hides the rows that came
since: blocks may get rows while they are scanned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, Int64, UInt8
from carpool.codes.by_numpy import (
    BLOCK_ROWS,
    GROUP,
    GROUP_BYTES,
    Proposed,
    Unpacked,
    scan_by_numpy,
    unpack,
)
from carpool.codes.int4 import code_layout, encode_rest, flat_probes, propose, scan_by_kernel
from carpool.codes.kernel import library
from carpool.codes.row_mask import RowMask, check_mask

LIST_MIN = 4
"""Blocks that the list of a cluster has room for at first; a full one moves, to twice the room."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The blocks of each cluster at a moment. `lists`: where its list begins, an address.

    `row_counts`: (clusters,) int64. `end`: the place after the last row.
    """

    lists: npt.NDArray[np.uint64]
    row_counts: Int64
    end: int


class GrowingCodes:
    """See the module. One thread adds; any thread scans a view."""

    def __init__(
        self, centroids: Float32, rotation: Float32, blocks_max: int, *, threads: int = 1
    ) -> None:
        """`centroids`: (clusters, dim) float32. Memory is taken as blocks are used."""
        dimension = len(rotation)
        self.block_bytes = code_layout(dimension).block_bytes
        self._threads = threads
        self._rotation = rotation
        self._centroids = np.ascontiguousarray(centroids @ rotation)
        self._blocks = np.empty((blocks_max, self.block_bytes), np.uint8)
        self._shape = (-(-dimension // GROUP), BLOCK_ROWS, GROUP_BYTES // BLOCK_ROWS)
        codes = self._blocks[:, : -4 * BLOCK_ROWS]
        self._codes = codes.reshape(blocks_max, *self._shape)
        self._steps = self._blocks[:, -4 * BLOCK_ROWS :].view(np.float32)
        self.blocks_used = 0
        self._row_counts = np.zeros(len(centroids), np.int64)
        # Lists are never changed below their count of blocks, so a view may use them for ever.
        self._list_space = np.empty(4 * blocks_max + LIST_MIN * len(centroids), np.int64)
        self._list_starts = np.zeros(len(centroids), np.int64)
        self._list_rooms = np.zeros(len(centroids), np.int64)
        self._list_end = 0

    def add(self, vectors: Float32, clusters: Int64) -> Int64 | None:
        """Adds rows, (n, dim) float32, to their clusters, (n,); returns their places, (n,) int64.

        None where they do not fit, and none is added.
        """
        places = self._places_for(clusters)
        if places is None:
            return None
        coded = encode_rest(vectors @ self._rotation - self._centroids[clusters])
        codes, steps = coded[:, : -4 * BLOCK_ROWS], coded[:, -4 * BLOCK_ROWS :]
        groups, rows, bytes_each = self._shape
        by_block = codes.reshape(len(coded), groups, rows, bytes_each)
        by_row = by_block.transpose(0, 2, 1, 3).reshape(len(coded) * rows, groups, bytes_each)
        blocks, in_block = places // BLOCK_ROWS, places % BLOCK_ROWS
        self._codes[blocks, :, in_block] = by_row[: len(places)]
        every_step = np.ascontiguousarray(steps).view(np.float32).reshape(-1)
        self._steps[blocks, in_block] = every_step[: len(places)]
        return places

    def view(self) -> View:
        """Returns the blocks that there are now."""
        lists = np.uint64(self._list_space.ctypes.data) + self._list_starts.astype(np.uint64) * 8
        return View(lists, self._row_counts.copy(), self.blocks_used * BLOCK_ROWS)

    def begin(self, queries: Float32, count: int) -> list[Proposed]:
        """Returns what scans are to propose; see `CodeScanner.begin`."""
        return propose(queries, self._rotation, count)

    def scan(
        self, view: View, mask: RowMask, proposed: Sequence[Proposed], probes: Sequence[Int64]
    ) -> None:
        """Adds the rows of clusters to what is proposed; see `CodeScanner.add`.

        `mask`: the places that may be found. Releases the GIL.
        """
        check_mask(mask, view.end)
        starts, clusters = flat_probes(probes, len(proposed), len(view.row_counts))
        if (kernel := library()) is None:
            scan_by_numpy(
                lambda cluster: self._unpacked(view, cluster),
                self._centroids,
                proposed,
                probes,
                mask,
            )
            return
        codes = np.full(len(view.row_counts), self._blocks.ctypes.data, np.uint64)
        index = (codes, view.lists, None, view.row_counts, self._centroids)
        scan_by_kernel(kernel, 0, self._threads, index, mask, proposed, starts, clusters)

    def places_of(self, view: View, clusters: Int64) -> Int64:
        """Returns the places of the rows of clusters, each once: (n,) int64."""
        found = [self._places_in(view, cluster) for cluster in clusters.tolist()]
        return np.concatenate([np.empty(0, np.int64), *found])

    def _places_in(self, view: View, cluster: int) -> Int64:
        count = int(view.row_counts[cluster])
        start = (int(view.lists[cluster]) - self._list_space.ctypes.data) // 8
        blocks = self._list_space[start : start - (-count // BLOCK_ROWS)]
        places = blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)
        return places.reshape(-1)[:count]

    def _unpacked(self, view: View, cluster: int) -> Unpacked | None:
        places = self._places_in(view, cluster)
        if not len(places):
            return None
        blocks: UInt8 = self._blocks[places[::BLOCK_ROWS] // BLOCK_ROWS]
        codes, steps = unpack(blocks, len(places), self._centroids.shape[1])
        return codes, steps, places

    def _places_for(self, clusters: Int64) -> Int64 | None:
        """Takes places for rows of these clusters, in their order."""
        order = np.argsort(clusters, kind="stable")
        which, firsts, counts = np.unique(clusters[order], return_index=True, return_counts=True)
        before = self._row_counts[which]
        blocks_before = -(-before // BLOCK_ROWS)
        blocks_new = -(-(before + counts) // BLOCK_ROWS) - blocks_before
        if self.blocks_used + int(blocks_new.sum()) > len(self._blocks):
            return None
        places = np.empty(len(clusters), np.int64)
        each = zip(
            which.tolist(), firsts.tolist(), counts.tolist(), blocks_new.tolist(), strict=True
        )
        for cluster, first, count, new in each:
            self._add_blocks(cluster, new)
            at = np.arange(self._row_counts[cluster], self._row_counts[cluster] + count)
            blocks = self._list_space[self._list_starts[cluster] + at // BLOCK_ROWS]
            places[order[first : first + count]] = blocks * BLOCK_ROWS + at % BLOCK_ROWS
            self._row_counts[cluster] += count
        return places

    def _add_blocks(self, cluster: int, count: int) -> None:
        """Appends unused blocks to the list of a cluster."""
        if not count:
            return
        used = -(-int(self._row_counts[cluster]) // BLOCK_ROWS)
        if used + count > self._list_rooms[cluster]:
            room = max(LIST_MIN, 2 * (used + count))
            start, self._list_end = self._list_end, self._list_end + room
            old = self._list_starts[cluster]
            self._list_space[start : start + used] = self._list_space[old : old + used]
            self._list_starts[cluster], self._list_rooms[cluster] = start, room
        at = int(self._list_starts[cluster]) + used
        self._list_space[at : at + count] = np.arange(self.blocks_used, self.blocks_used + count)
        self.blocks_used += count
