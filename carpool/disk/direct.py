"""Opens files with O_DIRECT: reads come from the disk and do not fill the page cache."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

IN_MEMORY = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}
"""File systems without a disk, by `f_type` of statfs(2). tmpfs accepts O_DIRECT since Linux 6.6."""

_NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of file systems without O_DIRECT, at open or at the first read."""
_PROBE_BYTES = 4096
_STATFS_WORDS = 32
"""More words than a `struct statfs` has; f_type is its first word."""


class NoDirectReadError(Exception):
    """The file system has no O_DIRECT, or no disk. The message is a predicate without subject."""


def open_direct(path: Path | str) -> int:
    """Returns a descriptor of `path` with O_DIRECT, after a test read. The caller closes it.

    Blocks. Raises `NoDirectReadError` where the file system does not support it, `OSError` where
    the file cannot be opened.
    """
    name = IN_MEMORY.get(file_system(path))
    if name is not None:
        raise NoDirectReadError(f"is {name}, which keeps files in memory")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            os.preadv(descriptor, [mmap.mmap(-1, _PROBE_BYTES)], 0)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        raise NoDirectReadError("does not take O_DIRECT") from error
    return descriptor


def file_system(path: Path | str) -> int:
    """Returns the file system type of `path`, as in statfs(2). Raises `OSError`."""
    words = (ctypes.c_ulong * _STATFS_WORDS)()
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), words):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return words[0]
