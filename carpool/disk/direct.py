"""Files opened past the page cache (O_DIRECT): what is read then comes from the disk, and leaves
nothing in memory.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

IN_MEMORY = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}
"""File systems without a disk, by the number that statfs(2) calls f_type. Linux takes O_DIRECT on
tmpfs since 6.6.
"""

_NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)
"""What a file system without O_DIRECT answers: some when the file is opened, some when it is
read.
"""
_PROBE_BYTES = 4096
_STATFS_WORDS = 32
"""More than a `struct statfs` has; f_type is the first of them."""


class NoDirectReadError(Exception):
    """The file system has no O_DIRECT, or no disk: a read would come from memory. The message says
    which, after its subject.
    """


def open_direct(path: Path | str) -> int:
    """Returns a descriptor for reading `path` with O_DIRECT, which has been seen to work. The
    caller closes it. Blocks.

    Raises `NoDirectReadError` where the file system cannot, `OSError` where the file cannot be
    opened.
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
    """Returns the type of the file system that `path` lies on, as statfs(2) numbers them. Raises
    `OSError`.
    """
    words = (ctypes.c_ulong * _STATFS_WORDS)()
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), words):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return words[0]
