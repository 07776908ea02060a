"""The segment files, opened with O_DIRECT so that reads bypass the page cache.

With `direct_io="auto"`, on a file system without O_DIRECT or in memory, they are read through the
page cache, and each read is dropped from it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import structlog

from carpool.disk.direct import NoDirectReadError, open_direct
from carpool.errors import ConfigError, RetryableError

_log = structlog.get_logger(__name__)


class SegmentFiles:
    """The files at `paths`, by segment; one descriptor each, for all threads."""

    def __init__(self, paths: Sequence[Path], direct_io: Literal["require", "auto"]) -> None:
        """Opens the files. Raises `ConfigError` where that fails, or O_DIRECT is required and
        refused.
        """
        self._paths = tuple(str(path) for path in paths)
        self._descriptors: list[int] = []
        self.is_direct = True
        try:
            for path in self._paths:
                self._descriptors.append(self._open(path, direct_io))
        except BaseException:
            self.close()
            raise

    def descriptor(self, file: int) -> int:
        """Returns the descriptor of a segment. Raises `RetryableError` after `close`."""
        if not self._descriptors:
            raise RetryableError(f"{self._paths[file]} is closed")
        return self._descriptors[file]

    def path(self, file: int) -> str:
        """Returns the name of a segment, for errors."""
        return self._paths[file]

    def fill(self, file: int, view: memoryview, offset_bytes: int) -> int:
        """Reads until `view` is full or the file ends; returns the bytes read. Blocks.

        Drops them from the page cache, unless they were read directly. Raises `OSError`, and
        `RetryableError` after `close`.
        """
        descriptor, done_bytes = self.descriptor(file), 0
        while done_bytes < len(view):
            at_bytes = offset_bytes + done_bytes
            count = os.preadv(descriptor, [view[done_bytes:]], at_bytes)
            done_bytes += count
            if not count or (done_bytes < len(view) and self.is_at_end(file, at_bytes + count)):
                break
        if not self.is_direct:
            os.posix_fadvise(descriptor, offset_bytes, done_bytes, os.POSIX_FADV_DONTNEED)
        return done_bytes

    def is_at_end(self, file: int, offset_bytes: int) -> bool:
        """Returns whether a file has nothing from `offset_bytes` on.

        That may be within a page, from where a direct read cannot go on.
        """
        return os.fstat(self.descriptor(file)).st_size <= offset_bytes

    def close(self) -> None:
        """Closes the files. Closing twice is harmless."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, path: str, direct_io: Literal["require", "auto"]) -> int:
        try:
            if self.is_direct:
                try:
                    return open_direct(path)
                except NoDirectReadError as error:
                    self._refused(path, direct_io, error)
            return os.open(path, os.O_RDONLY)  # O_DIRECT was refused, and all are in one folder
        except OSError as error:
            raise ConfigError(
                f"cannot open {path}: {error.strerror}; check the folder of the index"
            ) from error

    def _refused(
        self, path: str, direct_io: Literal["require", "auto"], error: NoDirectReadError
    ) -> None:
        if direct_io == "require":
            raise ConfigError(
                f"the file system of {path} {error}, so reads would stay in memory outside the "
                "budget; move the index to a local disk (ext4, xfs), or set [searcher] "
                'direct_io = "auto"'
            ) from error
        _log.warning(
            "buffered reads",
            path=path,
            why=str(error),
            means="the page cache is dropped after each read",
        )
        self.is_direct = False
