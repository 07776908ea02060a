"""Which pages of 4 KiB have the rows that are wanted, and how they are read. Pure.

Each page is read once for all queries that want it; neighbouring pages are one read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from carpool.disk.extents import HEADER_BYTES
from carpool.disk.pages import PageLayout

Int64 = npt.NDArray[np.int64]

PAGE_BYTES = 4096


class RowPlaces(NamedTuple):
    """Where rows are: `starts`, their first byte, (n,) int64, counted over all segments without
    their headers.
    """

    starts: Int64
    row_bytes: int

    @property
    def first_pages(self) -> Int64:
        """The page of the first byte of each row."""
        return self.starts // PAGE_BYTES

    @property
    def last_pages(self) -> Int64:
        """The page of the last byte of each row."""
        return (self.starts + self.row_bytes - 1) // PAGE_BYTES


class PlannedReads(NamedTuple):
    """Pages to read into one buffer: page i is at `i * 4096`.

    `pages`: (n,) int64, rising, counted over all segments without their headers. `first_of`: (m,)
    the position in `pages` where each read begins; `files`, `offsets_bytes`, `sizes_bytes`: (m,).
    """

    pages: Int64
    first_of: Int64
    files: Int64
    offsets_bytes: Int64
    sizes_bytes: Int64


def row_places(layout: PageLayout, rows: Int64) -> RowPlaces:
    """Returns where `rows` are, (n,) int64 row numbers."""
    page, slot = np.divmod(rows, layout.rows_per_page)
    return RowPlaces(page * layout.page_bytes + slot * layout.row_bytes, layout.row_bytes)


def plan_reads(places: RowPlaces, segment_first_pages: Int64) -> PlannedReads:
    """Returns the reads for all rows at `places`, at least one.

    `segment_first_pages`: (segments,) the number of the first page of each segment.
    """
    pages = _distinct(np.concatenate([places.first_pages, places.last_pages]))
    if places.row_bytes > 2 * PAGE_BYTES:
        spans = [
            np.arange(first, last + 1)
            for first, last in zip(
                places.first_pages.tolist(), places.last_pages.tolist(), strict=True
            )
        ]
        pages = _distinct(np.concatenate(spans))
    files = np.searchsorted(segment_first_pages, pages, side="right") - 1
    begins = np.ones(len(pages), bool)
    begins[1:] = (np.diff(pages) != 1) | (np.diff(files) != 0)
    first_of = np.flatnonzero(begins)
    counts = np.diff(np.append(first_of, len(pages)))
    first_pages, first_files = pages[first_of], files[first_of]
    return PlannedReads(
        pages,
        first_of,
        first_files,
        HEADER_BYTES + (first_pages - segment_first_pages[first_files]) * PAGE_BYTES,
        counts * PAGE_BYTES,
    )


def _distinct(numbers: Int64) -> Int64:
    """Returns the distinct numbers, rising. `np.unique` takes ten times as long for a few."""
    rising: Int64 = np.sort(numbers)
    is_new = np.ones(len(rising), bool)
    is_new[1:] = rising[1:] != rising[:-1]
    distinct: Int64 = rising[is_new]
    return distinct


def split_rows(rows: Int64, layout: PageLayout, pages_max: int) -> Iterator[Int64]:
    """Yields the positions of `rows`, (n,) int64, in parts whose pages fit `pages_max` pages.

    In rising order of rows, so that rows of one page are in one part.
    """
    order = np.argsort(rows, kind="stable")
    places = row_places(layout, rows[order])
    pages_a_row = places.last_pages - places.first_pages + 1
    # Pages that the row before does not have.
    new = pages_a_row.copy()
    new[1:] -= np.clip(places.last_pages[:-1] - places.first_pages[1:] + 1, 0, pages_a_row[1:])
    totals = np.cumsum(new)
    start, before = 0, 0
    while start < len(order):
        end = int(np.searchsorted(totals, before + pages_max, side="right"))
        end = max(end, start + 1)
        yield order[start:end]
        if end < len(order):
            before = int(totals[end] - pages_a_row[end])
        start = end


def segment_first_pages(segment_bytes: Sequence[int]) -> Int64:
    """Returns the number of the first page of each segment: sizes of the files -> (n,) int64.

    Pages are counted over all segments without their headers.
    """
    counts = np.array([(size - HEADER_BYTES) // PAGE_BYTES for size in segment_bytes], np.int64)
    first_pages: Int64 = np.cumsum(counts) - counts
    return first_pages
