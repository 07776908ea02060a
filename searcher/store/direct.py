"""The reader of a segment file: `preadv` with O_DIRECT into the cache's own pages, past the page cache.

With `direct_io="auto"`, on a file system that refuses O_DIRECT, it reads through the page cache and drops what it read.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Literal

import structlog

from carpool.disk.segment import PAGE_BYTES, ClusterExtent
from carpool.errors import ConfigError, CorruptionError, RetryableError
from searcher.store.reader import allocate_pages, check_pages

_log = structlog.get_logger(__name__)

NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)
"""What a file system without O_DIRECT answers: some when the file is opened, some when it is read."""


class DirectReader:
    """Reads extents of the file at `path`. One file descriptor for all threads."""

    def __init__(self, path: Path, direct_io: Literal["require", "auto"]) -> None:
        """Opens the file. Raises `ConfigError` where it cannot be opened, or O_DIRECT is required and refused."""
        self._path = str(path)
        try:
            self._file = _open_direct(self._path)
            self.is_direct = True
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise ConfigError(f"cannot open {path}: {error.strerror}; check the folder of the index") from error
            if direct_io == "require":
                raise ConfigError(
                    f"the file system of {path} does not take O_DIRECT, so what is read would stay in the page cache, outside "
                    'the budget; move the index to a local disk (ext4, xfs), or set [searcher] direct_io = "auto"'
                ) from error
            _log.warning(
                "buffered reads", path=self._path, means="no O_DIRECT here; the page cache is dropped after each read"
            )
            self._file = os.open(self._path, os.O_RDONLY)
            self.is_direct = False

    def read_into(self, extent: ClusterExtent, pages: mmap.mmap) -> None:
        """Fills `pages`; see `ClusterReader.read_into`."""
        check_pages(extent, pages)
        if self._file < 0:
            raise RetryableError(f"{self._path} is closed")
        done_bytes = 0
        with memoryview(pages) as view:
            while done_bytes < extent.size_bytes:
                offset_bytes = extent.offset_bytes + done_bytes
                try:
                    count = os.preadv(self._file, [view[done_bytes:]], offset_bytes)
                except OSError as error:
                    raise RetryableError(
                        f"reading cluster {extent.cluster} at byte {offset_bytes} of {self._path} failed: {error.strerror}; "
                        "if it goes on, check the disk"
                    ) from error
                if count == 0:
                    raise CorruptionError(
                        f"{self._path} ends at byte {offset_bytes}, within cluster {extent.cluster}: the segment was cut short. "
                        "Run `carpool index verify`, then restore or rebuild the index",
                        path=self._path,
                        offset_bytes=offset_bytes,
                    )
                done_bytes += count
        if not self.is_direct:
            os.posix_fadvise(self._file, extent.offset_bytes, extent.size_bytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Closes the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _open_direct(path: str) -> int:
    """Returns a descriptor with O_DIRECT that has been seen to work. Raises `OSError`."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        os.preadv(file, [allocate_pages(PAGE_BYTES)], 0)
    except OSError:
        os.close(file)
        raise
    return file
