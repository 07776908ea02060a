"""An engine whose segments lie in memory: for simulations, tests, and an index that fits."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from carpool.clock import Clock
from carpool.disk.segment import ClusterExtent
from carpool.errors import CorruptionError, RetryableError
from searcher.store.engine import BlockRead
from searcher.store.reader import check_pages
from searcher.store.threads import ThreadEngine


class MemoryEngine(ThreadEngine):
    """Copies blocks out of `segments`, the bytes of each segment's file, one after the other."""

    def __init__(self, segments: Sequence[bytes], *, clock: Clock) -> None:
        super().__init__(self._copy, depth=1, prefetch_depth=1, clock=clock)
        self._segments = segments

    def _copy(self, read: BlockRead) -> None:
        segment = self._segments[read.file]
        if read.offset_bytes + read.size_bytes > len(segment):
            raise CorruptionError(
                f"segment {read.file} in memory ends at byte {len(segment)}, within a cluster; it does not belong to this table "
                "of extents",
                path=f"memory segment {read.file}",
                offset_bytes=len(segment),
            )
        start_bytes = read.offset_bytes
        for buffer in read.buffers:
            buffer[:] = segment[start_bytes : start_bytes + buffer.nbytes]
            start_bytes += buffer.nbytes


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
