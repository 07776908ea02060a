"""Counters of the kernel, and its page cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from carpool.errors import ConfigError

SHARE_MAX = 0.02
SLACK_BYTES = 16 << 20
"""Pages of interpreter and libraries (FAISS has 40 MB): the kernel counts them, a contestant does
not.
"""
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def agrees(one: int, other: int) -> bool:
    """Whether two counts of bytes are within 2 % or 16 MiB of each other. Pure."""
    return abs(one - other) <= max(SLACK_BYTES, SHARE_MAX * max(one, other))


def process_read_bytes() -> int:
    """Returns the bytes that this process read from disk: page faults and O_DIRECT included.

    Raises `ConfigError` where the kernel does not count them.
    """
    path = Path("/proc/self/io")
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} ({error.strerror}): bytes are the kernel's count; run on Linux "
            "with task I/O accounting"
        ) from error
    return int(dict(line.split(": ", 1) for line in lines)["read_bytes"])


def drop_page_cache(folders: Iterable[Path], *, everything: bool) -> None:
    """Empties the page cache: all of it where `everything` and root, else of files in `folders`.

    Pages that a process has mapped stay. Blocks until dirty pages are written.
    """
    if everything and os.access(_DROP_CACHES, os.W_OK):
        os.sync()
        _DROP_CACHES.write_text("3", encoding="ascii")
        return
    for path in (file for folder in folders for file in sorted(folder.rglob("*"))):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # dirty pages cannot be dropped
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
