"""A reader whose segment lies in memory: for simulations, tests, and an index that fits."""

from __future__ import annotations

import mmap

from carpool.disk.segment import ClusterExtent
from carpool.errors import CorruptionError, RetryableError
from searcher.store.reader import check_pages


class MemoryReader:
    """Copies extents out of `segment`, the bytes of a segment file. Does not block."""

    def __init__(self, segment: bytes) -> None:
        self._segment: bytes | None = segment

    def read_into(self, extent: ClusterExtent, pages: mmap.mmap) -> None:
        """Fills `pages`; see `ClusterReader.read_into`."""
        check_pages(extent, pages)
        if self._segment is None:
            raise RetryableError("the segment in memory is closed")
        end_bytes = extent.offset_bytes + extent.size_bytes
        if end_bytes > len(self._segment):
            raise CorruptionError(
                f"the segment in memory ends at byte {len(self._segment)}, within cluster {extent.cluster}; "
                "it does not belong to this table of extents",
                path="memory",
                offset_bytes=len(self._segment),
            )
        pages[:] = self._segment[extent.offset_bytes : end_bytes]

    def close(self) -> None:
        """Lets go of the segment."""
        self._segment = None
