"""Where each cluster of an index and its codes are stored: segment, offset and size. Pure.

The codes of a segment are a file of their own. Those of a cluster begin at a multiple of 4 KiB, so
that they are read with `O_DIRECT`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from carpool.codes.codec import CodeLayout
from carpool.disk.pages import PageLayout

HEADER_BYTES = 4096
"""The header of a segment."""
SEGMENT_BYTES_MAX = 256 << 20
"""Limit of a segment, which is saved when it is complete; one of one cluster may be larger."""


class ClusterExtent(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cluster is stored: `size_bytes` at `offset_bytes` of `segment`, multiples of 4096.

    `first_page`: the number of the first page among all pages of the index.
    """

    cluster: int
    segment: int
    offset_bytes: int
    size_bytes: int
    page_count: int
    row_count: int
    first_page: int = 0


def segment_name(segment: int) -> str:
    """Returns the file name of a segment, such as "clusters-000000.seg"."""
    return f"clusters-{segment:06d}.seg"


def extent_at(
    layout: PageLayout,
    cluster: int,
    segment: int,
    offset_bytes: int,
    row_count: int,
    *,
    pages_before: int,
) -> ClusterExtent:
    """Returns the extent of a whole cluster at this place.

    `pages_before`: the pages of all clusters before it.
    """
    page_count = layout.page_count(row_count)
    return ClusterExtent(
        cluster=cluster,
        segment=segment,
        offset_bytes=offset_bytes,
        size_bytes=page_count * layout.page_bytes,
        page_count=page_count,
        row_count=row_count,
        first_page=pages_before,
    )


def plan_extents(
    layout: PageLayout, row_counts: Sequence[int], *, segment_bytes_max: int = SEGMENT_BYTES_MAX
) -> tuple[ClusterExtent, ...]:
    """Returns the extent of each cluster, in order: cluster c has `row_counts[c]` rows.

    A segment ends before the cluster that would make it larger than `segment_bytes_max`; a cluster
    that is larger by itself has its own segment.
    """
    extents = []
    segment, end_bytes, page_count = 0, HEADER_BYTES, 0
    for cluster, row_count in enumerate(row_counts):
        size_bytes = layout.page_count(row_count) * layout.page_bytes
        if end_bytes > HEADER_BYTES and end_bytes + size_bytes > segment_bytes_max:
            segment, end_bytes = segment + 1, HEADER_BYTES
        extents.append(
            extent_at(layout, cluster, segment, end_bytes, row_count, pages_before=page_count)
        )
        end_bytes += size_bytes
        page_count += extents[-1].page_count
    return tuple(extents)


def segment_size_bytes(extents: Sequence[ClusterExtent], segment: int) -> int:
    """Returns the size of a segment's file, header included."""
    return HEADER_BYTES + sum(extent.size_bytes for extent in extents if extent.segment == segment)


ALIGNMENT_BYTES = 4096


class CodeExtent(msgspec.Struct, frozen=True, kw_only=True):
    """The codes of a cluster: `size_bytes` at `offset_bytes` of the file of `segment`."""

    segment: int
    offset_bytes: int
    size_bytes: int

    @property
    def read_bytes(self) -> int:
        """Bytes of whole pages of 4 KiB."""
        return -(-self.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def codes_name(codec: str, segment: int) -> str:
    """Returns the name of a file of codes, such as "codes-int4-000000.bin"."""
    return f"codes-{codec}-{segment:06d}.bin"


def padded(codes: bytes) -> bytes:
    """Returns the codes of a cluster as they are stored: filled with zeros to whole pages."""
    return codes.ljust(-(-len(codes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, b"\0")


def plan_codes(layout: CodeLayout, extents: Sequence[ClusterExtent]) -> tuple[CodeExtent, ...]:
    """Returns where the codes of each cluster are, given the `extents` of all clusters."""
    planned: list[CodeExtent] = []
    segment, end_bytes = 0, 0
    for extent in extents:
        if extent.segment != segment:
            segment, end_bytes = extent.segment, 0
        planned.append(
            CodeExtent(
                segment=segment,
                offset_bytes=end_bytes,
                size_bytes=layout.size_bytes(extent.row_count),
            )
        )
        end_bytes += planned[-1].read_bytes
    return tuple(planned)
