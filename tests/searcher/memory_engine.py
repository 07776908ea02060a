"""An engine whose segments are in memory."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.clock import Clock
from carpool.errors import CorruptionError
from searcher.store.engine import BlockRead
from searcher.store.threads import ThreadEngine


class MemoryEngine(ThreadEngine):
    """Copies blocks from `segments`, the bytes of each segment's file."""

    def __init__(self, segments: Sequence[bytes], *, clock: Clock) -> None:
        super().__init__(self._copy, depth=1, prefetch_depth=1, clock=clock)
        self._segments = segments

    def _copy(self, read: BlockRead) -> None:
        segment = self._segments[read.file]
        if read.offset_bytes + read.size_bytes > len(segment):
            raise CorruptionError(
                f"segment {read.file} in memory ends at byte {len(segment)}, within a cluster; it "
                "does not belong to this table of extents",
                path=f"memory segment {read.file}",
                offset_bytes=len(segment),
            )
        start_bytes = read.offset_bytes
        for buffer in read.buffers:
            buffer[:] = segment[start_bytes : start_bytes + buffer.nbytes]
            start_bytes += buffer.nbytes
