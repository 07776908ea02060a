"""Which pages of 4 KiB have the ranges of bytes that are wanted, and which queries go together.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

PAGE_BYTES = 4096


class RangePieces(NamedTuple):
    """What ranges of a file have in each page: one piece for each range and page.

    (n,) int64 each, in rising order of `pages`. `ranges`: positions of ranges. `begins`, `ends`:
    bytes of the file.
    """

    ranges: Int64
    pages: Int64
    begins: Int64
    ends: Int64


def cut_ranges(starts: Int64, sizes: Int64) -> RangePieces:
    """Returns the pieces of ranges of bytes: (n,) int64 each, which may overlap or be empty."""
    first = starts // PAGE_BYTES
    counts = np.maximum((starts + sizes - 1) // PAGE_BYTES - first + 1, 0)
    ranges = np.repeat(np.arange(len(starts)), counts)
    pages = np.arange(len(ranges)) + np.repeat(first + counts - np.cumsum(counts), counts)
    order = np.argsort(pages, kind="stable")
    ranges, pages = ranges[order], pages[order]
    return RangePieces(
        ranges,
        pages,
        np.maximum(starts[ranges], pages * PAGE_BYTES),
        np.minimum((starts + sizes)[ranges], (pages + 1) * PAGE_BYTES),
    )


def first_of_reads(pages: Int64) -> Int64:
    """Returns the position in `pages`, (n,) rising, where each read begins: neighbours are one."""
    begins = np.ones(len(pages), bool)
    begins[1:] = np.diff(pages) != 1
    return np.flatnonzero(begins)


def share_out(
    wanted: Sequence[Sequence[int]], size_bytes: Mapping[int, int], bytes_max: int
) -> Iterator[range]:
    """Yields the positions of queries whose documents are read together, in their order.

    `wanted`: the documents of each query; `size_bytes` of each document, 0 where there is none.
    What several queries want counts once. One query may exceed `bytes_max`; more do not.
    """
    start, total, seen = 0, 0, set[int]()
    for position, documents in enumerate(wanted):
        more = sum(size_bytes.get(one, 0) for one in set(documents) - seen)
        if position > start and total + more > bytes_max:
            yield range(start, position)
            start, seen = position, set()
            more = sum(size_bytes.get(one, 0) for one in set(documents))
            total = 0
        total += more
        seen.update(documents)
    if wanted:
        yield range(start, len(wanted))
