"""The scan of several clusters for one query alone: all products first, by any number of threads,
then one selection.

A lone query waits for memory: 10 clusters of 10,000 x 384 are 160 MB, 4 ms. Selecting in each
cluster by itself would cost 0.7 ms more, and clusters are too coarse to end at the same time on
every thread. So threads take stretches of pages, long ones first, and note the best score of each
group of rows while scores are in the cache. The best rows are looked for once, in the few groups
that can hold them. As everything that 160 MB pushed out of the caches is slow the first time, there
is little before the first product and after the last: stretches are cut as they are taken, and the
few rows that are found are looked up one by one.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from carpool.disk.pages import ClusterPages, PageLayout, UInt8
from searcher.scoring.products import Products
from searcher.scoring.top_k import LEAST, NO_FLOOR, Float32, TopK

ROWS_MAX = 1 << 20
"""Rows whose scores are held at a time: 4 MB. More clusters than that are better scored one by
one.
"""
STRETCH_BYTES_MIN = 3 << 20
"""Shorter stretches cost more to hand out than they even out."""
SHARES = 1.5
"""Parts of what is left for each thread, of which the next stretch is one."""
GROUP_ROWS_MAX = 256
"""Rows whose best score stands for all of them at first."""
GROUPS_PER_RESULT = 8
"""Groups that there should be for each result: their best scores are then a floor that leaves few
rows.
"""

_ROW_NUMBER = struct.Struct("<q")


class Part(NamedTuple):
    """Neighbouring pages of one cluster, a view of a piece; rows have the places from `start` on;
    `row_count` are in use.
    """

    start: int
    cluster: int
    pages: UInt8
    row_count: int


class LoneScan:
    """The rows of some clusters of `layout` for one query, and then of others for the next. Not for
    two at a time.

    For each query `begin`, do each piece of `work` once, on any threads, call `best`, and `forget`.
    Keeps scratch of 4 to 8 bytes for each place of a row in the pages of the largest scan so far.
    Vectors and queries must be finite.
    """

    def __init__(self, layout: PageLayout) -> None:
        self.layout = layout
        self._rows_per_page, self._page_bytes = layout.rows_per_page, layout.page_bytes
        self._ids_offset_bytes = layout.ids_offset_bytes
        self._products = Products(layout, np.zeros((1, layout.dimension), np.float32))
        self._room = np.empty(0, np.float32)
        self._highest = np.empty(0, np.float32)
        self._clusters: Sequence[ClusterPages] = ()
        self._parts: list[Part] = []
        self._starts: list[int] = []  # of the parts

    def begin(
        self,
        clusters: Sequence[ClusterPages],
        query: Float32,
        *,
        top_k: int,
        floor: float,
        threads: int,
    ) -> None:
        """`query`: (dim,) float32, wants `top_k` of the rows of `clusters`, and none below `floor`;
        -inf for any.

        Raises `ValueError` for another dimension. Holds the pages until `forget`.
        """
        self._products.load(query[None, :])
        self._clusters = clusters
        self._top_k = top_k
        self._floor = np.float32(floor)
        self._threads = threads
        row_count = sum([cluster.row_count for cluster in clusters])
        self._page_count = sum([len(piece) for cluster in clusters for piece in cluster.pieces])
        self._group_rows = max(1, min(GROUP_ROWS_MAX, row_count // (GROUPS_PER_RESULT * top_k)))
        stretches_max = self._page_count // self._pages_wanted(0) + 1  # each begins a group
        group_count = self._page_count * self._rows_per_page // self._group_rows + 2 * stretches_max
        if len(self._room) < group_count * self._group_rows:
            self._room = np.empty(group_count * self._group_rows, np.float32)
        if len(self._highest) < group_count:
            self._highest = np.empty(group_count, np.float32)
        self._highest.fill(NO_FLOOR)  # of each group

    def work(self) -> Iterator[Callable[[], None]]:
        """Yields what is to be done, in order, each piece for one thread. Not thread-safe; the
        pieces are.
        """
        return (partial(self._multiply, stretch) for stretch in self.stretches())

    def stretches(self) -> Iterator[list[Part]]:
        """Yields all pages in order, as neighbours: at first a part of what is left for each
        thread, less and less.
        """
        stretch: list[Part] = []
        start, page_count = 0, self._page_count
        room = self._pages_wanted(page_count)
        for cluster in self._clusters:
            rows_left = cluster.row_count
            for piece in cluster.pieces:
                first = 0
                while first < len(piece):
                    pages = piece[first : first + room]
                    rows = len(pages) * self._rows_per_page
                    part = Part(start, cluster.cluster, pages, min(rows_left, rows))
                    stretch.append(part)
                    self._parts.append(part)
                    self._starts.append(start)
                    start += rows
                    first += len(pages)
                    room -= len(pages)
                    rows_left -= part.row_count
                    page_count -= len(pages)
                    if not room:
                        yield stretch
                        stretch, room = [], self._pages_wanted(page_count)
                        start += -start % self._group_rows
        if stretch:
            yield stretch

    def _pages_wanted(self, pages_left: int) -> int:
        shares = 1 if self._threads == 1 else SHARES * self._threads
        return max(1, STRETCH_BYTES_MIN // self._page_bytes, int(pages_left // shares))

    def _multiply(self, stretch: list[Part]) -> None:
        start, scores = stretch[0].start, self._room
        self._products.write([part.pages for part in stretch], scores[start:, None])
        end = start
        for part in stretch:
            end = part.start + len(part.pages) * self._rows_per_page
            scores[part.start + part.row_count : end] = (
                NO_FLOOR  # what is unused of a cluster's last page
            )
        first, last = start // self._group_rows, -(-end // self._group_rows)
        scores[end : last * self._group_rows] = NO_FLOOR  # and of the last group
        self._groups(first, last).max(axis=1, out=self._highest[first:last])

    def best(self) -> TopK:
        """Returns the best `top_k` of all rows whose score is not below the floor. Call it after
        all of `work`.
        """
        floor = max(
            _kth_best(self._highest, self._top_k, self._floor), LEAST
        )  # so many rows are not below it
        groups = np.flatnonzero(self._highest >= floor)
        scores = self._groups(0, len(self._room) // self._group_rows)[groups].reshape(-1)
        hits = np.flatnonzero(scores >= _kth_best(scores, self._top_k, floor))
        found = []
        for hit, score in zip(hits.tolist(), scores[hits].tolist(), strict=True):
            group, at = divmod(hit, self._group_rows)
            found.append((-score, *self._number(int(groups[group]) * self._group_rows + at)))
        found = sorted(found)[
            : self._top_k
        ]  # as results are: best first, equal scores in the order of row numbers
        return TopK(
            np.array([-negative for negative, _, _ in found], np.float32),
            np.array([row for _, row, _ in found], np.int64),
            np.array([cluster for _, _, cluster in found], np.int64),
        )

    def forget(self) -> None:
        """Lets go of the pages."""
        self._clusters, self._parts, self._starts = (), [], []

    def _groups(self, first: int, last: int) -> Float32:
        """The scores of some groups: (last - first, rows of a group), a view."""
        return self._room[first * self._group_rows : last * self._group_rows].reshape(
            -1, self._group_rows
        )

    def _number(self, place: int) -> tuple[int, int]:
        """Returns row number and cluster of the row at a place."""
        part = self._parts[bisect_right(self._starts, place) - 1]
        page, at = divmod(place - part.start, self._rows_per_page)
        offset_bytes = page * self._page_bytes + self._ids_offset_bytes + 8 * at
        return _ROW_NUMBER.unpack_from(part.pages.data, offset_bytes)[0], part.cluster


def _kth_best(scores: Float32, top_k: int, floor: np.float32) -> np.float32:
    """The k-th best of (n,) `scores`, or `floor` where that is higher or where they are fewer."""
    if len(scores) < top_k:
        return floor
    kth: np.float32 = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    return max(kth, floor)
