"""The scan of several clusters for one query alone: all products first, by any number of threads, then one selection.

A lone query waits for memory: 10 clusters of 10,000 x 384 are 160 MB, 4 ms. Selecting in each cluster by itself would cost
0.7 ms more, and clusters are too coarse to end at the same time on every thread. So threads take stretches of pages, long
ones first, and note the best score of each group of rows while scores are in the cache. The best rows are looked for once,
in the few groups that can hold them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from carpool.disk.pages import ClusterPages, UInt8
from searcher.products import Products
from searcher.top_k import NO_FLOOR, Candidates, Float32, Int64, Scored, Slots

ROWS_MAX = 1 << 20
"""Rows whose scores are held at a time: 4 MB. More clusters than that are better scored one by one."""
STRETCH_BYTES_MIN = 1 << 20
"""Shorter stretches cost more to hand out than they even out."""
GROUP_ROWS_MAX = 256
"""Rows whose best score stands for all of them at first."""
GROUPS_PER_RESULT = 8
"""Groups that there should be for each result: their best scores are then a floor that leaves few rows."""


class _Stretch(NamedTuple):
    """Neighbouring pages of one cluster, a view of a piece, and how many of their rows are in use: the first ones."""

    cluster: int
    pages: UInt8
    row_count: int


class LoneScan:
    """The rows of `clusters`, of one layout, for one query (dim,) float32 that wants `top_k` of them; `floor`: -inf for none.

    Call `multiply` once for each stretch, on any threads, and then `found`. Holds 4 bytes a row, and the pages until
    `forget`. Vectors and query must be finite.
    """

    def __init__(
        self, clusters: Sequence[ClusterPages], query: Float32, *, top_k: int, floor: float, threads: int
    ) -> None:
        self._layout = clusters[0].layout
        self._products = Products(self._layout, query[None, :])
        self._top_k = top_k
        self._floor = np.float32(floor)
        self._rows_per_page = self._layout.rows_per_page
        self._stretches = tuple(_stretches(clusters, self._rows_per_page, threads))
        row_count = sum(cluster.row_count for cluster in clusters)
        group_rows = max(1, min(GROUP_ROWS_MAX, row_count // (GROUPS_PER_RESULT * top_k)))
        counts = [-(-len(stretch.pages) * self._rows_per_page // group_rows) for stretch in self._stretches]
        self._groups = np.cumsum([0, *counts])  # (stretches + 1,): the first group of each stretch
        self._scores = np.empty((int(self._groups[-1]), group_rows), np.float32)
        self._highest = np.empty(int(self._groups[-1]), np.float32)

    def __len__(self) -> int:
        """Stretches of pages."""
        return len(self._stretches)

    def multiply(self, number: int) -> None:
        """Scores the rows of a stretch. Thread-safe for different ones; releases the GIL."""
        stretch = self._stretches[number]
        first, end = self._groups[number : number + 2].tolist()
        groups = self._scores[first:end]
        scores = groups.reshape(-1, 1)
        self._products.write([stretch.pages], scores)
        scores[stretch.row_count :] = NO_FLOOR  # what is unused of the last page, and of the last group
        groups.max(axis=1, out=self._highest[first:end])

    def found(self, slots: Slots) -> Scored:
        """Returns the best `top_k` of all rows whose score is not below the floor, and those that tie with the last.

        `slots`: (1,), of the query, in the table that they are for.
        """
        floor = _kth_best(self._highest, self._top_k, self._floor)  # so many rows are not below it
        groups = np.flatnonzero(self._highest >= floor)
        scores = self._scores[groups]
        least = _kth_best(scores.ravel(), self._top_k, floor)
        which, member = np.nonzero((scores >= least) & (scores > NO_FLOOR))
        clusters, rows = self._numbers(groups[which], member)
        candidates = Candidates(np.zeros(len(rows), np.intp), scores[which, member], rows, np.array([floor]))
        return Scored(clusters, slots, candidates)

    def forget(self) -> None:
        """Lets go of the pages."""
        self._stretches = ()

    def _numbers(self, groups: Slots, members: Slots) -> tuple[Int64, Int64]:
        """Returns cluster and row number of rows, by their groups and places there: (n,) each."""
        owners = np.searchsorted(self._groups, groups, side="right") - 1
        pages, places = np.divmod(
            (groups - self._groups[owners]) * self._scores.shape[1] + members, self._rows_per_page
        )
        owned = [self._stretches[owner] for owner in owners.tolist()]
        rows = [
            self._layout.row_numbers(stretch.pages)[page, place]
            for stretch, page, place in zip(owned, pages.tolist(), places.tolist(), strict=True)
        ]
        return np.array([stretch.cluster for stretch in owned], np.int64), np.array(rows, np.int64)


def _kth_best(scores: Float32, top_k: int, floor: np.float32) -> np.float32:
    """The k-th best of (n,) `scores`, or `floor` where that is higher or where they are fewer."""
    if len(scores) < top_k:
        return floor
    kth: np.float32 = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    return max(kth, floor)


def _stretches(clusters: Sequence[ClusterPages], rows_per_page: int, threads: int) -> Iterator[_Stretch]:
    """Yields all pages in order: at first what is left over twice the threads, less and less."""
    left_bytes = sum(piece.nbytes for cluster in clusters for piece in cluster.pieces)
    for cluster in clusters:
        rows_left = cluster.row_count
        for piece in cluster.pieces:
            page_bytes, start = piece.shape[1], 0
            while start < len(piece):
                wanted_bytes = piece.nbytes if threads == 1 else max(STRETCH_BYTES_MIN, left_bytes // (2 * threads))
                pages = piece[start : start + max(1, wanted_bytes // page_bytes)]
                rows = min(rows_left, len(pages) * rows_per_page)
                yield _Stretch(cluster.cluster, pages, rows)
                start += len(pages)
                rows_left -= rows
                left_bytes -= len(pages) * page_bytes
