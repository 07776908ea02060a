"""An engine that has nothing: every read fails, as on a disk that is gone. Queries are answered `failed`, nothing crashes."""

from __future__ import annotations

import mmap

from carpool.clock import Clock
from carpool.disk.segment import ClusterExtent
from carpool.errors import RetryableError
from searcher.store.engine import BlockRead
from searcher.store.reader import check_pages
from searcher.store.threads import ThreadEngine


class NoEngine(ThreadEngine):
    """Fails every read with `RetryableError`."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(_refuse, depth=1, prefetch_depth=1, clock=clock)


def _refuse(read: BlockRead) -> None:
    raise RetryableError(
        f"segment {read.file} cannot be read at byte {read.offset_bytes}: there is nothing behind this engine"
    )


class NoReader:
    """Fails every read with `RetryableError`."""

    def read_into(self, extent: ClusterExtent, pages: mmap.mmap) -> None:
        """Raises `RetryableError`; see `ClusterReader.read_into`."""
        check_pages(extent, pages)
        raise RetryableError(f"cluster {extent.cluster} cannot be read: there is no segment behind this reader")

    def close(self) -> None:
        """Does nothing."""
