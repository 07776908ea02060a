"""The scan of several clusters for one query alone: all products first, by any number of threads, then one selection.

A lone query waits for memory: 10 clusters of 10,000 x 384 are 160 MB, 5 ms. Selecting in each cluster by itself would cost
0.7 ms more, and clusters are too coarse to end at the same time on every thread. So threads take stretches of pages, long
ones first, and the best rows are looked for once, in the scores of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from carpool.disk.pages import ClusterPages, UInt8
from searcher.scan import GROUP_ROWS_MAX, above, multiply, row_numbers_at
from searcher.top_k import NO_FLOOR, Candidates, Float32, Scored, Slots

ROWS_MAX = 1 << 20
"""Rows whose scores are held at a time: 4 MB. More clusters than that are better scored one by one."""
STRETCH_BYTES_MIN = 1 << 20
"""Shorter stretches cost more to hand out than they even out."""


class LoneScan:
    """The rows of `clusters`, of one layout, for one query (dim,) float32 that wants `top_k` of them; `floor`: -inf for none.

    Call `multiply` once for each stretch, on any threads, and then `found`. Holds 4 bytes a row, and the pages until
    `forget`. Vectors and query must be finite.
    """

    def __init__(
        self, clusters: Sequence[ClusterPages], query: Float32, *, top_k: int, floor: float, threads: int
    ) -> None:
        self._clusters = tuple(clusters)
        self._layout = clusters[0].layout
        self._queries = query[None, :]
        self._top_ks = np.array([top_k], np.intp)
        self._floors = np.array([floor], np.float32)
        rows_per_page = self._layout.rows_per_page
        page_counts = [sum(map(len, cluster.pieces)) for cluster in self._clusters]
        self._starts = np.cumsum([0, *page_counts]) * rows_per_page  # (n + 1,), in rows of the scratch
        self._scores = np.empty((int(self._starts[-1]) + GROUP_ROWS_MAX, 1), np.float32)
        self._stretches = tuple(_stretches(self._clusters, threads))

    def __len__(self) -> int:
        """Stretches of pages."""
        return len(self._stretches)

    def multiply(self, number: int) -> None:
        """Scores the rows of a stretch. Thread-safe for different ones; releases the GIL."""
        first_page, pages = self._stretches[number]
        rows_per_page = self._layout.rows_per_page
        start = first_page * rows_per_page
        multiply(self._layout, [pages], self._queries, self._scores[start : start + len(pages) * rows_per_page])

    def found(self, slots: Slots) -> Scored:
        """Returns the best `top_k` of all rows whose score is not below the floor, and those that tie with the last.

        `slots`: (1,), of the query, in the table that they are for.
        """
        for cluster, start, end in zip(self._clusters, self._starts, self._starts[1:], strict=False):
            self._scores[start + cluster.row_count : end] = NO_FLOOR  # what is unused of the last page
        _, scores, positions, floors = above(self._scores, int(self._starts[-1]), self._floors, self._top_ks)
        top_k = int(self._top_ks[0])
        least = np.partition(scores, -top_k)[-top_k] if len(scores) > top_k else floors[0]
        kept = (scores >= least) & (scores > NO_FLOOR)
        scores, positions = scores[kept], positions[kept]
        owners = np.searchsorted(self._starts, positions, side="right") - 1
        rows, clusters = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for owner in sorted(set(owners.tolist())):
            cluster, here = self._clusters[owner], owners == owner
            rows[here] = row_numbers_at(self._layout, list(cluster.pieces), positions[here] - self._starts[owner])
            clusters[here] = cluster.cluster
        return Scored(clusters, slots, Candidates(np.zeros(len(rows), np.intp), scores, rows, floors))

    def forget(self) -> None:
        """Lets go of the pages."""
        self._clusters, self._stretches = (), ()


def _stretches(clusters: Sequence[ClusterPages], threads: int) -> Iterator[tuple[int, UInt8]]:
    """Yields (pages before it, pages), views of a piece: at first what is left over twice the threads, less and less."""
    pieces = [piece for cluster in clusters for piece in cluster.pieces]
    left_bytes = sum(piece.nbytes for piece in pieces)
    first = 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            wanted_bytes = piece.nbytes if threads == 1 else max(STRETCH_BYTES_MIN, left_bytes // (2 * threads))
            stretch = piece[start : start + max(1, wanted_bytes // piece.shape[1])]
            yield first + start, stretch
            start += len(stretch)
            left_bytes -= stretch.nbytes
        first += len(piece)
