"""Where the codes of each cluster are stored: a file for each segment. Pure.

The codes of a cluster begin at a multiple of 4 KiB, so that they are read with `O_DIRECT`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from carpool.codes.codec import CodeLayout
from carpool.disk.extents import ClusterExtent

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
    """Returns where the codes of each cluster are, by cluster; `extents`: of all clusters."""
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
