"""A reader that has nothing: every read fails, as on a disk that is gone. Queries are answered `failed`, nothing crashes."""

from __future__ import annotations

import mmap

from carpool.disk.segment import ClusterExtent
from carpool.errors import RetryableError
from searcher.store.reader import check_pages


class NoReader:
    """Fails every read with `RetryableError`."""

    def read_into(self, extent: ClusterExtent, pages: mmap.mmap) -> None:
        """Raises `RetryableError`; see `ClusterReader.read_into`."""
        check_pages(extent, pages)
        raise RetryableError(f"cluster {extent.cluster} cannot be read: there is no segment behind this reader")

    def close(self) -> None:
        """Does nothing."""
