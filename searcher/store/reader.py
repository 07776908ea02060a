"""The seam of cluster readers: one blocking call that fills a buffer with the bytes of one extent."""

from __future__ import annotations

import mmap
from typing import Protocol

from carpool.disk.segment import ClusterExtent


class ClusterReader(Protocol):
    """Reads extents of one segment. Any thread may call; several calls run at once."""

    def read_into(self, extent: ClusterExtent, pages: mmap.mmap) -> None:
        """Fills `pages` with the bytes of `extent`. Blocks.

        `pages` is exactly `extent.size_bytes` long (see `allocate_pages`) and the caller's: it is not kept. Raises
        `CorruptionError` where the segment ends early, and `RetryableError` where the read failed but may go through
        later. A normal return does not promise that the bytes are undamaged.
        """
        ...

    def close(self) -> None:
        """Lets go of the file; reads after that raise `RetryableError`. Closing twice is harmless."""
        ...


def allocate_pages(size_bytes: int) -> mmap.mmap:
    """Returns private zeroed pages, page-aligned as O_DIRECT wants it, outside the heap.

    They go back to the operating system as soon as the last view of them is gone, so that what the budget has freed is
    free: a heap would keep it.
    """
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def check_pages(extent: ClusterExtent, pages: mmap.mmap) -> None:
    """Raises `ValueError` where the buffer does not have the size of the extent."""
    if len(pages) != extent.size_bytes:
        raise ValueError(f"{len(pages)} bytes of buffer for the {extent.size_bytes} of cluster {extent.cluster}")
