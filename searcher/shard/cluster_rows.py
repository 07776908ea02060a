"""Reads the vectors of whole clusters for the hot shard, past the page cache."""

from __future__ import annotations

import mmap

import numpy as np

from carpool.disk.extents import ClusterExtent
from carpool.disk.index import OpenIndex
from carpool.disk.pages import ClusterPages, stored_vectors
from carpool.disk.segments import verify_pages
from carpool.errors import RetryableError
from schemas.record import ClusterId
from searcher.shard.device import Vectors
from searcher.store.files import SegmentFiles


class ClusterRowsReader:
    """Reads one cluster at a time, for one thread. Owns `files`, the segments of `index`."""

    def __init__(self, index: OpenIndex, files: SegmentFiles) -> None:
        self._buffer = mmap.mmap(-1, max(extent.size_bytes for extent in index.extents))
        self._layout = index.layout
        self._extents = index.extents
        self._sums = index.row_sums
        self._files = files

    def read(self, cluster: ClusterId) -> Vectors:
        """Returns the vectors of a cluster, verified: (n, dim), until the next read. Blocks.

        Memory: the pages of the largest cluster, and the vectors of this one. Raises
        `CorruptionError`, and `RetryableError` where the disk gives an error.
        """
        extent = self._extents[cluster]
        if not extent.row_count:
            return np.empty((0, self._layout.dimension), self._layout.number_type)
        self._fill(extent)
        pages = np.frombuffer(self._buffer, np.uint8, extent.size_bytes)
        pages = pages.reshape(extent.page_count, self._layout.page_bytes)
        path = self._files.path(extent.segment)
        verify_pages(pages, extent, path=path, sums=self._sums[extent.segment])
        read = ClusterPages(cluster, self._layout, extent.row_count, (pages,), extent.first_page)
        return stored_vectors(read)

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

    def _fill(self, extent: ClusterExtent) -> None:
        """Reads a cluster; what a short file lacks is 0, which is found damaged."""
        with memoryview(self._buffer)[: extent.size_bytes] as view:
            try:
                done_bytes = self._files.fill(extent.segment, view, extent.offset_bytes)
            except OSError as error:
                raise RetryableError(
                    f"{self._files.path(extent.segment)} cannot be read at or after byte "
                    f"{extent.offset_bytes}: {error.strerror}"
                ) from error
            view[done_bytes:] = bytes(len(view) - done_bytes)
