"""Reads large files from front to back without leaving them in the page cache."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES = 4 << 20
_PAGE_BYTES = 4096


class SequentialFile:
    """A file that is read forward and dropped from the page cache. A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        _advise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read_into(self, buffer: memoryview, offset_bytes: int) -> int:
        """Fills `buffer` (bytes) from `offset_bytes`; returns how many were read. Blocks."""
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor, [buffer[done:]], offset_bytes + done)
            if count == 0:
                break
            done += count
        end_bytes = offset_bytes + done
        # While the caller works on this block the disk reads the next one.
        _advise(self._descriptor, end_bytes, len(buffer), os.POSIX_FADV_WILLNEED)
        # The first page of this block may also contain the end of the block before: drop it now.
        start_bytes = offset_bytes // _PAGE_BYTES * _PAGE_BYTES
        _advise(self._descriptor, start_bytes, end_bytes - start_bytes, os.POSIX_FADV_DONTNEED)
        return done

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes the file and drops what the kernel has read ahead."""
        _advise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._descriptor)


def drop_cached(path: Path) -> None:
    """Drops a file's clean pages from the page cache, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _advise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def bytes_of(array: npt.NDArray[np.generic]) -> memoryview:
    """Returns the memory of a contiguous array as bytes."""
    # NumPy's stubs do not say that an array is a buffer.
    content: Buffer = array.reshape(-1).view(np.uint8)  # type: ignore[assignment]
    return memoryview(content)


def _advise(descriptor: int, offset_bytes: int, size_bytes: int, advice: int) -> None:
    try:
        os.posix_fadvise(descriptor, offset_bytes, size_bytes, advice)
    except OSError as error:
        # Advice only: file systems and pipes may not take it.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ESPIPE, errno.EOPNOTSUPP):
            raise
