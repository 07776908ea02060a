"""How clusters are cut into slices. Small clusters are one slice, large ones several.

While one slice is scored the disk reads the next; little memory is tied up by reads in flight;
and a cluster may be kept in part, which uses the budget fully.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from carpool.disk.extents import ClusterExtent
from carpool.disk.pages import PageLayout
from schemas.record import ClusterId
from searcher.plan.slices import SliceId


class Slices:
    """The slices of all clusters, numbered in the order of clusters and of pages in a cluster."""

    def __init__(
        self, extents: Sequence[ClusterExtent], layout: PageLayout, slice_bytes_max: int = 0
    ) -> None:
        """`extents`: of all clusters, in order.

        No slice is larger than `slice_bytes_max`, except one of a single page; 0: clusters are not
        cut.
        """
        self._extents: list[ClusterExtent] = []
        self._numbers: list[tuple[SliceId, ...]] = []
        pages_max = max(1, slice_bytes_max // layout.page_bytes)
        for extent in extents:
            is_cut = slice_bytes_max and extent.page_count
            count = -(-extent.page_count // pages_max) if is_cut else 1
            first = len(self._extents)
            self._extents.extend(cut(extent, layout, count))
            self._numbers.append(tuple(map(SliceId, range(first, len(self._extents)))))

    @property
    def extents(self) -> Sequence[ClusterExtent]:
        """Where each slice is stored, by its number; `cluster` is its cluster."""
        return self._extents

    def of(self, cluster: int) -> tuple[SliceId, ...]:
        """Returns the slices of a cluster; none for a cluster that does not exist."""
        return self._numbers[cluster] if 0 <= cluster < len(self._numbers) else ()

    def of_all(self, clusters: Iterable[int]) -> tuple[SliceId, ...]:
        """Returns the slices of clusters, in their order."""
        return tuple([number for cluster in clusters for number in self.of(cluster)])

    def cluster(self, number: SliceId) -> ClusterId:
        """Returns the cluster of a slice."""
        return ClusterId(self._extents[number].cluster)


def cut(extent: ClusterExtent, layout: PageLayout, count: int) -> list[ClusterExtent]:
    """Returns `extent` as `count` extents of nearly as many pages each, in order."""
    if count == 1:
        return [extent]
    parts = []
    for number in range(count):
        start, end = extent.page_count * number // count, extent.page_count * (number + 1) // count
        rows = min(end * layout.rows_per_page, extent.row_count) - start * layout.rows_per_page
        parts.append(
            msgspec.structs.replace(
                extent,
                offset_bytes=extent.offset_bytes + start * layout.page_bytes,
                size_bytes=(end - start) * layout.page_bytes,
                page_count=end - start,
                row_count=rows,
                first_page=extent.first_page + start,
            )
        )
    return parts
