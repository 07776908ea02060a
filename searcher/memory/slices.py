"""Slices: the parts of clusters that are read, kept and scored as one. Small clusters are one
slice, large ones several.

A cluster of 16 MB takes as long to read as to plan a window; in slices the disk reads the next one
while this one is scored, little memory is tied up by what is under way, and the budget is filled to
the brim: a cluster may be kept in part. A slice has a number of its own, which stands wherever
planner, policies and memory speak of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from carpool.disk.extents import ClusterExtent
from carpool.disk.pages import PageLayout
from schemas.record import ClusterId


class Slices:
    """How clusters are cut: numbers are given in the order of clusters, and of pages within a
    cluster.
    """

    def __init__(
        self, extents: Sequence[ClusterExtent], layout: PageLayout, slice_bytes_max: int = 0
    ) -> None:
        """`extents`: of all clusters in order. No slice has more than `slice_bytes_max`, or a page;
        0: clusters are not cut.
        """
        self._extents: list[ClusterExtent] = []
        self._numbers: list[tuple[ClusterId, ...]] = []
        pages_max = max(1, slice_bytes_max // layout.page_bytes)
        for extent in extents:
            count = (
                -(-extent.page_count // pages_max) if slice_bytes_max and extent.page_count else 1
            )
            first = len(self._extents)
            self._extents.extend(cut(extent, layout, count))
            self._numbers.append(tuple(map(ClusterId, range(first, len(self._extents)))))

    @property
    def extents(self) -> Sequence[ClusterExtent]:
        """Where each slice lies, by its number; `cluster` is the cluster's own."""
        return self._extents

    def of(self, cluster: int) -> tuple[ClusterId, ...]:
        """Returns the numbers of a cluster's slices; none for a cluster that there is not."""
        return self._numbers[cluster] if 0 <= cluster < len(self._numbers) else ()

    def of_all(self, clusters: Iterable[int]) -> tuple[ClusterId, ...]:
        """Returns the slices of clusters, in their order."""
        return tuple([number for cluster in clusters for number in self.of(cluster)])

    def cluster(self, number: int) -> ClusterId:
        """Returns the cluster that a slice is of."""
        return ClusterId(self._extents[number].cluster)

    def shared(self, costs: Mapping[ClusterId, int]) -> dict[ClusterId, int]:
        """Returns what of each cluster's cost falls to each of its slices; clusters without a cost
        are left out.
        """
        return {
            number: costs[cluster] // len(numbers)
            for position, numbers in enumerate(self._numbers)
            if (cluster := ClusterId(position)) in costs
            for number in numbers
        }


def cut(extent: ClusterExtent, layout: PageLayout, count: int) -> list[ClusterExtent]:
    """Returns `extent` as `count` extents of nearly as many pages each, in order. Pure."""
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
