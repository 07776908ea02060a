"""Reads the vectors of whole clusters for the hot shard, past the page cache."""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt

from carpool.disk.index import OpenIndex
from carpool.disk.pages import ClusterPages, dense
from carpool.disk.segments import verify_pages
from carpool.errors import RetryableError
from schemas.record import ClusterId
from searcher.store.files import SegmentFiles

Float32 = npt.NDArray[np.float32]


class ClusterRowsReader:
    """Reads one cluster at a time, for one thread. Owns `files`, the segments of `index`."""

    def __init__(self, index: OpenIndex, files: SegmentFiles) -> None:
        self._layout = index.layout
        self._extents = index.extents
        self._sums = index.row_sums
        self._build_id = index.manifest.build_id
        self._files = files

    def read(self, cluster: ClusterId) -> Float32:
        """Returns the vectors of a cluster, verified: (n, dim) float32. Blocks.

        Memory: the pages of the cluster and its vectors. Raises `CorruptionError`, and
        `RetryableError` where the disk gives an error.
        """
        extent = self._extents[cluster]
        if not extent.row_count:
            return np.empty((0, self._layout.dimension), np.float32)
        buffer = mmap.mmap(-1, extent.size_bytes)
        self._fill(buffer, extent.segment, extent.offset_bytes)
        pages = np.frombuffer(buffer, np.uint8).reshape(extent.page_count, self._layout.page_bytes)
        verify_pages(
            pages,
            extent,
            build_id=self._build_id,
            path=self._files.path(extent.segment),
            sums=self._sums[extent.segment] if self._sums else None,
        )
        read = ClusterPages(cluster, self._layout, extent.row_count, (pages,), extent.first_page)
        return dense(read).vectors

    def close(self) -> None:
        """Closes the files."""
        self._files.close()

    def _fill(self, buffer: mmap.mmap, segment: int, offset_bytes: int) -> None:
        """Reads until the buffer is full; what a short file lacks stays 0 and is found damaged."""
        descriptor = self._files.descriptor(segment)
        done_bytes = 0
        with memoryview(buffer) as view:
            try:
                while done_bytes < len(view) and (
                    count := os.preadv(descriptor, [view[done_bytes:]], offset_bytes + done_bytes)
                ):
                    done_bytes += count
                if not self._files.is_direct:
                    os.posix_fadvise(descriptor, offset_bytes, len(view), os.POSIX_FADV_DONTNEED)
            except OSError as error:
                raise RetryableError(
                    f"{self._files.path(segment)} cannot be read at byte "
                    f"{offset_bytes + done_bytes}: {error.strerror}"
                ) from error
