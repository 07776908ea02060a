"""Fresh rows in memory: their codes, vectors and passages. A view is what a search sees of them.

Rows are numbered behind those of the base. A passage has a *slot*, in the order in which it came,
and a place among the codes (`carpool.codes.growing`), which is its row number behind the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, Int64
from carpool.codes.by_numpy import BLOCK_ROWS, Proposed
from carpool.codes.growing import GrowingCodes, View
from carpool.codes.int4 import code_layout
from carpool.codes.row_mask import RowMask, are_visible, new_mask, set_visible
from carpool.corpus.assign import assign
from carpool.corpus.passages import ROW_BYTES
from carpool.disk.documents import Passage
from searcher.scoring.top_k import TopK

CHUNK_ROWS = 4_096
"""Rows that are multiplied or encoded at a time."""
_passages = msgspec.msgpack.Decoder(Passage)


class FreshRows:
    """Rows are added and hidden by one thread; any thread uses a view."""

    def __init__(
        self,
        centroids: Float32,
        rotation: Float32,
        *,
        first_row: int,
        limit_bytes: int,
        threads: int = 1,
    ) -> None:
        """`centroids`: (nlist, dim) float32, those of the base; `first_row`: behind its last row.

        Rows that are far from all centroids are in cluster nlist. Memory is taken as it is used.
        """
        nlist, dimension = centroids.shape
        self.zero_cluster = nlist
        self.first_row = first_row
        self.limit_bytes = limit_bytes
        self._centroids, self._rotation, self._threads = centroids, rotation, threads
        with_zero = np.concatenate([centroids, np.zeros((1, dimension), np.float32)])
        blocks_max = max(1, limit_bytes // code_layout(dimension).block_bytes)
        self.codes = GrowingCodes(with_zero, rotation, blocks_max, threads=threads)
        slots_max = max(1, limit_bytes // (2 * dimension))
        self.vectors = np.empty((slots_max, dimension), np.float16)
        self.clusters: npt.NDArray[np.int32] = np.empty(slots_max, np.int32)  # by slot
        self._places = np.empty(slots_max, np.int64)  # by slot
        self.slots: npt.NDArray[np.int32] = np.empty(blocks_max * BLOCK_ROWS, np.int32)  # by place
        self.passages: list[bytes] = []  # by slot, MessagePack
        self._mask = new_mask(blocks_max * BLOCK_ROWS, is_visible=False)
        self._passage_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What all rows take, hidden ones too."""
        row_bytes = self.vectors.itemsize * self.vectors.shape[1] + ROW_BYTES
        blocks_bytes = self.codes.blocks_used * self.codes.block_bytes
        return int(blocks_bytes + len(self.passages) * row_bytes + self._passage_bytes)

    def add(self, vectors: npt.NDArray[np.float16], passages: Sequence[bytes]) -> bool:
        """Adds visible rows: (n, dim) float16, and their passages as MessagePack.

        Their slots follow those of all earlier ones. False where they do not fit: none is added.
        """
        exact = vectors.astype(np.float32)
        return self._add(vectors, passages, exact, assign(exact, self._centroids))

    def _add(
        self,
        vectors: npt.NDArray[np.float16],
        passages: Sequence[bytes],
        exact: Float32,
        clusters: Int64,
    ) -> bool:
        start, end = len(self.passages), len(self.passages) + len(passages)
        more_bytes = sum(map(len, passages))
        row_bytes = self.vectors.itemsize * self.vectors.shape[1] + ROW_BYTES
        if self.size_bytes + more_bytes + len(passages) * row_bytes > self.limit_bytes:
            return False
        if (places := self.codes.add(exact, clusters)) is None:
            return False
        self.vectors[start:end] = vectors
        self.clusters[start:end] = clusters
        self._places[start:end] = places
        self.slots[places] = np.arange(start, end)
        self.passages.extend(passages)
        self._passage_bytes += more_bytes
        set_visible(self._mask, places, is_visible=True)
        return True

    def hide(self, slots: Sequence[range]) -> None:
        """Hides rows from later views."""
        if slots:
            places = np.concatenate([self._places[each.start : each.stop] for each in slots])
            set_visible(self._mask, places, is_visible=False)

    def rows_of(self, slots: range) -> Int64:
        """Returns the row numbers of slots: (n,) int64."""
        return self._places[slots.start : slots.stop] + self.first_row

    def view(self) -> FreshView:
        """Returns what searches that begin now see."""
        blocks = self.codes.view()
        mask = self._mask[: blocks.end // 8 + new_mask(0, is_visible=False).size].copy()
        return FreshView(self, blocks, mask)

    def rewritten(self, kept: Sequence[range]) -> FreshRows:
        """Returns the rows of these slots alone, in their order, in memory of their own."""
        new = FreshRows(
            self._centroids,
            self._rotation,
            first_row=self.first_row,
            limit_bytes=self.limit_bytes,
            threads=self._threads,
        )
        slots = np.concatenate([np.empty(0, np.int64), *(np.arange(*_ends(one)) for one in kept)])
        for first in range(0, len(slots), CHUNK_ROWS):
            some = slots[first : first + CHUNK_ROWS]
            vectors = self.vectors[some]
            passages = [self.passages[slot] for slot in some.tolist()]
            exact = vectors.astype(np.float32)
            fits = new._add(vectors, passages, exact, self.clusters[some].astype(np.int64))
            assert fits, "some of the rows take no more room than all of them"
        return new


@dataclass(frozen=True, slots=True, eq=False)
class FreshView:
    """The fresh rows that a search may find. Immutable; for any thread."""

    rows: FreshRows
    blocks: View
    mask: RowMask

    def scan(self, proposed: Sequence[Proposed], probes: Sequence[Int64]) -> None:
        """Adds rows of clusters, and of the zero cluster, to what is proposed: their places."""
        zero = np.array([self.rows.zero_cluster])
        with_zero = [np.union1d(clusters, zero) for clusters in probes]
        self.rows.codes.scan(self.blocks, self.mask, proposed, with_zero)

    def scores(self, vector: Float32, rows: Int64) -> Float32:
        """Returns the exact scores of rows: (n,) int64 -> (n,) float32."""
        vectors = self.rows.vectors[self._slots(rows)].astype(np.float32)
        scores: Float32 = vectors @ vector
        return scores

    def merged(self, found: TopK, vector: Float32, clusters: Sequence[int], top_k: int) -> TopK:
        """Returns the best rows of those that were `found` in the base, and of `best`."""
        own = self.best(vector, clusters, top_k)
        scores = np.concatenate([found.scores, own.scores])
        rows = np.concatenate([found.rows, own.rows])
        of_rows = np.concatenate([found.clusters, own.clusters])
        order = np.lexsort((rows, -scores))[:top_k]
        return TopK(scores[order], rows[order], of_rows[order])

    def best(self, vector: Float32, clusters: Sequence[int], top_k: int) -> TopK:
        """Returns the best rows of clusters, and of the zero cluster, by their exact scores."""
        wanted = np.array([*clusters, self.rows.zero_cluster], np.int64)
        places = self.rows.codes.places_of(self.blocks, np.unique(wanted))
        rows = places[are_visible(self.mask, places)] + self.rows.first_row
        chunks = [rows[at : at + CHUNK_ROWS] for at in range(0, len(rows), CHUNK_ROWS)]
        found = [np.empty(0, np.float32), *(self.scores(vector, chunk) for chunk in chunks)]
        scores = np.concatenate(found)
        order = np.lexsort((rows, -scores))[:top_k]
        return TopK(scores[order], rows[order], self.clusters_of(rows[order]))

    def clusters_of(self, rows: Int64) -> Int64:
        """Returns the cluster of each of `rows`: (n,) int64 -> (n,) int64."""
        clusters: Int64 = self.rows.clusters[self._slots(rows)].astype(np.int64)
        return clusters

    def passages(self, rows: Sequence[int]) -> list[Passage]:
        """Returns the passages of `rows`, in their order."""
        slots = self._slots(np.array(rows, np.int64)).tolist()
        return [_passages.decode(self.rows.passages[slot]) for slot in slots]

    def _slots(self, rows: Int64) -> npt.NDArray[np.int32]:
        return self.rows.slots[rows - self.rows.first_row]


def _ends(slots: range) -> tuple[int, int]:
    return slots.start, slots.stop
