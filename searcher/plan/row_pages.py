"""Which pages of 4 KiB have the rows that are wanted, and how they are read. Pure.

Each page is read once for all queries that want it; neighbouring pages are one read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from carpool.arrays import Int64
from carpool.disk.extents import HEADER_BYTES
from carpool.disk.pages import PageLayout

PAGE_BYTES = 4096


class PlannedReads(NamedTuple):
    """Reads into one buffer, one behind the other, and the rows that are in them.

    `starts`: (rows,) int64, the first byte of each row in the buffer. `files`, `offsets_bytes`,
    `sizes_bytes`: (n,) int64, of each read; whole pages.
    """

    starts: Int64
    files: Int64
    offsets_bytes: Int64
    sizes_bytes: Int64


def plan_reads(
    rows: Int64, layout: PageLayout, segment_first_pages: Int64, pages_max: int
) -> PlannedReads:
    """Returns the reads for the first of `rows`: as many as fit `pages_max` pages, at least one.

    `rows`: (n,) int64 row numbers, rising, n >= 1. `segment_first_pages`: as the function of this
    name returns them.
    """
    page, slot = np.divmod(rows, layout.rows_per_page)
    starts = page * layout.page_bytes + slot * layout.row_bytes
    first, last = starts // PAGE_BYTES, (starts + layout.row_bytes - 1) // PAGE_BYTES
    new = last - first + 1  # pages that the row before does not have
    new[1:] = np.minimum(new[1:], last[1:] - last[:-1])
    ends = np.cumsum(new)  # in the buffer, of the last page of each row
    count = max(1, int(np.searchsorted(ends, pages_max, side="right")))
    starts, last, new, ends = (each[:count] for each in (starts, last, new, ends))
    pages = np.arange(ends[-1]) + np.repeat(last + 1 - ends, new)
    files = np.searchsorted(segment_first_pages, pages, side="right") - 1
    is_first = np.ones(len(pages) + 1, bool)
    is_first[1:-1] = (pages[1:] - pages[:-1] != 1) | (files[1:] != files[:-1])
    bounds = np.flatnonzero(is_first)
    begins = bounds[:-1]
    files = files[begins]
    offsets = (pages[begins] - segment_first_pages[files]) * PAGE_BYTES + HEADER_BYTES
    return PlannedReads(
        starts + (ends - 1 - last) * PAGE_BYTES, files, offsets, np.diff(bounds) * PAGE_BYTES
    )


def segment_first_pages(segment_bytes: Sequence[int]) -> Int64:
    """Returns the number of the first page of each segment: sizes of the files -> (n,) int64.

    Pages are counted over all segments without their headers.
    """
    counts = np.array([(size - HEADER_BYTES) // PAGE_BYTES for size in segment_bytes], np.int64)
    first_pages: Int64 = np.cumsum(counts) - counts
    return first_pages
