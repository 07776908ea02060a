"""The scan of several clusters for one query alone: all products first, by any number of threads, then one selection.

A lone query waits for memory: 10 clusters of 10,000 x 384 are 160 MB, 4 ms. Selecting in each cluster by itself would cost
0.7 ms more, and clusters are too coarse to end at the same time on every thread. So threads take stretches of pages, long
ones first, and note the best score of each group of rows while scores are in the cache. The best rows are looked for once,
in the few groups that can hold them. As everything that 160 MB pushed out of the caches is slow the first time, there is
little before the first product and after the last: stretches are cut as they are taken, and the few rows that are found
are looked up one by one.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from carpool.disk.pages import ClusterPages, UInt8
from searcher.products import Products
from searcher.top_k import LEAST, NO_FLOOR, Candidates, Float32, Scored, Slots

ROWS_MAX = 1 << 20
"""Rows whose scores are held at a time: 4 MB. More clusters than that are better scored one by one."""
STRETCH_BYTES_MIN = 1 << 20
"""Shorter stretches cost more to hand out than they even out."""
GROUP_ROWS_MAX = 256
"""Rows whose best score stands for all of them at first."""
GROUPS_PER_RESULT = 8
"""Groups that there should be for each result: their best scores are then a floor that leaves few rows."""

_ROW_NUMBER = struct.Struct("<q")


class Part(NamedTuple):
    """Neighbouring pages of one cluster, a view of a piece, and how many of their rows are in use: the first ones."""

    cluster: int
    pages: UInt8
    row_count: int


class Stretch(NamedTuple):
    """What a thread takes at a time; its rows are numbered through, those that are not in use too."""

    parts: list[Part]
    ends: list[int]  # of the rows of each part


class _Scores(NamedTuple):
    """What a stretch gave. `scores`: (groups, rows of a group) float32; `highest`: (groups,) of them."""

    stretch: Stretch
    scores: Float32
    highest: Float32


class LoneScan:
    """The rows of `clusters`, at least one, of one layout, for one query (dim,) float32 that wants `top_k` of them.

    `floor`: no score below it is wanted; -inf for none. Call `multiply` once for each of `stretches`, on any threads, and
    then `found`. Holds 4 bytes a row, and the pages until `forget`. Vectors and query must be finite.
    """

    def __init__(
        self, clusters: Sequence[ClusterPages], query: Float32, *, top_k: int, floor: float, threads: int
    ) -> None:
        self._clusters = clusters
        self._layout = clusters[0].layout
        self._rows_per_page, self._page_bytes = self._layout.rows_per_page, self._layout.page_bytes
        self._products = Products(self._layout, query[None, :])
        self._top_k = top_k
        self._floor = np.float32(floor)
        self._threads = threads
        row_count = sum(cluster.row_count for cluster in clusters)
        self._group_rows = max(1, min(GROUP_ROWS_MAX, row_count // (GROUPS_PER_RESULT * top_k)))
        self._scores: list[_Scores] = []

    def stretches(self) -> Iterator[Stretch]:
        """Yields all pages in order: at first what is left over twice the threads, less and less. One at a time."""
        left_bytes = sum(piece.nbytes for cluster in self._clusters for piece in cluster.pieces)
        stretch, room = Stretch([], []), self._pages_wanted(left_bytes)
        for cluster in self._clusters:
            rows_left = cluster.row_count
            for piece in cluster.pieces:
                start = 0
                while start < len(piece):
                    pages = piece[start : start + room]
                    rows = len(pages) * self._rows_per_page
                    stretch.parts.append(Part(cluster.cluster, pages, min(rows_left, rows)))
                    stretch.ends.append(rows + (stretch.ends[-1] if stretch.ends else 0))
                    start += len(pages)
                    room -= len(pages)
                    rows_left -= min(rows_left, rows)
                    left_bytes -= len(pages) * self._page_bytes
                    if not room:
                        yield stretch
                        stretch, room = Stretch([], []), self._pages_wanted(left_bytes)
        if stretch.parts:
            yield stretch

    def _pages_wanted(self, left_bytes: int) -> int:
        shares = 1 if self._threads == 1 else 2 * self._threads
        return max(1, max(STRETCH_BYTES_MIN, left_bytes // shares) // self._page_bytes)

    def multiply(self, stretch: Stretch) -> None:
        """Scores the rows of a stretch. Thread-safe; releases the GIL."""
        scores = np.empty((-(-stretch.ends[-1] // self._group_rows), self._group_rows), np.float32)
        flat = scores.reshape(-1, 1)
        self._products.write([part.pages for part in stretch.parts], flat)
        flat[stretch.ends[-1] :] = NO_FLOOR  # what is unused of the last group
        start = 0
        for part, end in zip(stretch.parts, stretch.ends, strict=True):
            if part.row_count < end - start:
                flat[start + part.row_count : end] = NO_FLOOR  # and of a cluster's last page
            start = end
        self._scores.append(_Scores(stretch, scores, scores.max(axis=1)))

    def found(self, slots: Slots) -> Scored:
        """Returns the best `top_k` of all rows whose score is not below the floor, and those that tie with the last.

        `slots`: (1,), of the query, in the table that they are for.
        """
        highest = np.concatenate([scores.highest for scores in self._scores])
        floor = _kth_best(highest, self._top_k, self._floor)  # so many rows are not below it
        ends = list(accumulate(len(scores.highest) for scores in self._scores))
        chosen = []
        for group in np.flatnonzero(highest >= floor).tolist():
            of_stretch = self._scores[number := bisect_right(ends, group)]
            chosen.append((of_stretch, group - ends[number] + len(of_stretch.highest)))
        scores = np.concatenate([scores[group] for (_, scores, _), group in chosen] or [highest[:0]])
        least = max(_kth_best(scores, self._top_k, floor), LEAST)
        hits = np.flatnonzero(scores >= least)
        clusters, rows = [], []
        for hit in hits.tolist():
            (stretch, _, _), group = chosen[hit // self._group_rows]
            cluster, row = self._number(stretch, group * self._group_rows + hit % self._group_rows)
            clusters.append(cluster)
            rows.append(row)
        candidates = Candidates(np.zeros(len(rows), np.intp), scores[hits], np.array(rows, np.int64), np.array([floor]))
        return Scored(np.array(clusters, np.int64), slots, candidates)

    def forget(self) -> None:
        """Lets go of the pages."""
        self._clusters = ()
        self._scores = []

    def _number(self, stretch: Stretch, position: int) -> tuple[int, int]:
        """Returns cluster and row number of a row of a stretch."""
        at = bisect_right(stretch.ends, position)
        cluster, pages, _ = stretch.parts[at]
        page, place = divmod(position - (stretch.ends[at - 1] if at else 0), self._rows_per_page)
        offset_bytes = page * self._page_bytes + self._layout.ids_offset_bytes + 8 * place
        return cluster, _ROW_NUMBER.unpack_from(pages.data, offset_bytes)[0]


def _kth_best(scores: Float32, top_k: int, floor: np.float32) -> np.float32:
    """The k-th best of (n,) `scores`, or `floor` where that is higher or where they are fewer."""
    if len(scores) < top_k:
        return floor
    kth: np.float32 = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    return max(kth, floor)
