"""Pages: whole rows of one cluster. Pure.

A page has rows and nothing else. The number of a row is its place: the number of its
page among all pages of the index, times the rows of a page, plus its place in the page. Checksums
are in a side file (`carpool.disk.checked_file`).

Only the last page of a cluster may have fewer rows than fit; unused bytes are zero. An empty
cluster has one page of zeros.

A vector is in one page, so scanning needs no copy: the vectors at one slot of all
pages are a matrix with a long stride, which BLAS accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from carpool.arrays import Float32, Int64, UInt8

PAGE_ALIGNMENT_BYTES = 4096
PAGE_BYTES_MAX = 64 << 10
SIZE_MARGIN = 0.002
"""How much more space than with the best page size the clusters may need, as a share.

Unused space of a page is read and kept in memory, too.
"""
ROW_BITS = 40
"""Bits of a row number."""

VectorDtype = Literal["float32", "float16"]


class PageLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The arrangement of rows in the pages of an index. Raises `ValueError` if no row fits."""

    dimension: int
    vector_dtype: VectorDtype
    page_bytes: int

    def __post_init__(self) -> None:
        """Refuses a page that is not aligned or too small for one row."""
        if self.page_bytes > PAGE_BYTES_MAX:
            raise ValueError(f"a page has {self.page_bytes} bytes, and at most {PAGE_BYTES_MAX}")
        if self.page_bytes % PAGE_ALIGNMENT_BYTES or self.rows_per_page < 1:
            raise ValueError(
                f"pages of {self.page_bytes} bytes are too small for rows of {self.row_bytes}"
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of a vector."""
        return self.dimension * (4 if self.vector_dtype == "float32" else 2)

    @property
    def number_type(self) -> np.dtype[np.floating]:
        """How the numbers of a vector are stored."""
        return np.dtype("<f4" if self.vector_dtype == "float32" else "<f2")

    @property
    def rows_per_page(self) -> int:
        """Rows that fit a page."""
        return self.page_bytes // self.row_bytes

    def page_count(self, row_count: int) -> int:
        """Returns the pages of a cluster of `row_count` rows; at least one."""
        return max(1, -(-row_count // self.rows_per_page))

    def rows_at_slot(self, slot: int, row_count: int) -> int:
        """Returns how many pages of a cluster of `row_count` rows have a row at `slot`."""
        return max(0, -(-(row_count - slot) // self.rows_per_page))

    def vectors(self, pages: UInt8, slot: int) -> npt.NDArray[np.floating]:
        """Returns a view: (n, page_bytes) uint8 -> (n, dimension), the vectors at `slot`."""
        start = slot * self.row_bytes
        return pages[:, start : start + self.row_bytes].view(self.number_type)


class ClusterPages(NamedTuple):
    """A verified cluster in memory: its pages in order, in pieces of (n, page_bytes) uint8.

    The pieces are views; their owner decides how long they are valid. `first_page`: number of the
    first page, as in `ClusterExtent`.
    """

    cluster: int
    layout: PageLayout
    row_count: int
    pieces: tuple[UInt8, ...]
    first_page: int = 0


class ClusterRows(NamedTuple):
    """The rows of a cluster as plain arrays: vectors (n, dim) float32, rows (n,) int64."""

    cluster: int
    vectors: Float32
    rows: Int64


def stored_vectors(cluster: ClusterPages) -> npt.NDArray[np.floating]:
    """Returns a cluster's vectors in order, as they are stored: (n, dim) float32 or float16.

    A view where the pages are in one piece and have no other bytes.
    """
    layout = cluster.layout
    pages = cluster.pieces[0] if len(cluster.pieces) == 1 else np.concatenate(cluster.pieces)
    used = pages[:, : layout.rows_per_page * layout.row_bytes].view(layout.number_type)
    return used.reshape(-1, layout.dimension)[: cluster.row_count]


def dense(cluster: ClusterPages) -> ClusterRows:
    """Returns copies of a cluster's rows in order, as float32. For tools and tests."""
    layout, count = cluster.layout, cluster.row_count
    rows = cluster.first_page * layout.rows_per_page + np.arange(count)
    return ClusterRows(cluster.cluster, stored_vectors(cluster).astype(np.float32), rows)


def choose_layout(
    dimension: int, vector_dtype: VectorDtype, row_counts: Sequence[int] = (1 << 20,)
) -> PageLayout:
    """Returns the smallest page within `SIZE_MARGIN` of the best size for these clusters.

    By default for clusters of many rows: 12 KiB with 8 rows for 384 x float32, 4 KiB with one for
    1,024. Pages are smaller for clusters of few rows, whose last page is often half empty. Raises
    `ValueError` where a row does not fit a page.
    """
    layouts = []
    for page_bytes in range(PAGE_ALIGNMENT_BYTES, PAGE_BYTES_MAX + 1, PAGE_ALIGNMENT_BYTES):
        with suppress(ValueError):
            layouts.append(
                PageLayout(dimension=dimension, vector_dtype=vector_dtype, page_bytes=page_bytes)
            )
    if not layouts:
        raise ValueError(
            f"a vector of dimension {dimension} does not fit a page of {PAGE_BYTES_MAX} bytes"
        )
    sizes_bytes = [
        layout.page_bytes * sum(map(layout.page_count, row_counts)) for layout in layouts
    ]
    enough_bytes = min(sizes_bytes) * (1 + SIZE_MARGIN)
    return next(
        layout
        for layout, size_bytes in zip(layouts, sizes_bytes, strict=True)
        if size_bytes <= enough_bytes
    )


def encode_pages(layout: PageLayout, vectors: Float32) -> UInt8:
    """Returns the pages of a cluster: (page_count, page_bytes) uint8.

    `vectors`: (n, dim) float32, rounded to the layout's dtype; n may be 0. Raises `ValueError` for
    another dimension.
    """
    count = len(vectors)
    if vectors.shape != (count, layout.dimension):
        raise ValueError(f"vectors of shape {vectors.shape} for dimension {layout.dimension}")
    pages = np.zeros((layout.page_count(count), layout.page_bytes), dtype=np.uint8)
    for slot in range(layout.rows_per_page):
        taken = layout.rows_at_slot(slot, count)
        layout.vectors(pages, slot)[:taken] = vectors[slot :: layout.rows_per_page]
    return pages
