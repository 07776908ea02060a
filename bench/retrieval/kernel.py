"""Counters of the kernel, and its page cache: /proc/PID/io, disk times, dropping cached pages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from carpool.errors import ConfigError

SECTOR_BYTES = 512
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_BLOCK_DEVICES = Path("/sys/dev/block")


class DiskTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A block device since boot, for all processes. `busy_us`: with a request in flight."""

    read_bytes: int
    busy_us: int


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
    counts = dict(line.split(": ", 1) for line in lines)
    return int(counts["read_bytes"])


def disk_times(path: Path) -> DiskTimes | None:
    """Returns the counters of the block device of `path`, or None where it has none."""
    device = path.stat().st_dev
    stat = _BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}" / "stat"
    try:
        fields = stat.read_text(encoding="ascii").split()
    except OSError:
        return None
    return DiskTimes(read_bytes=int(fields[2]) * SECTOR_BYTES, busy_us=int(fields[9]) * 1_000)


def drop_page_cache(folders: Iterable[Path], *, everything: bool) -> Literal["all", "files"]:
    """Empties the page cache, and returns which part: `all`, or the `files` in `folders`.

    `all` needs `everything` and root. Pages that a process has mapped stay. Blocks until dirty
    pages are written.
    """
    if everything and os.access(_DROP_CACHES, os.W_OK):
        os.sync()
        _DROP_CACHES.write_text("3", encoding="ascii")
        return "all"
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                _drop_pages_of(file)
    return "files"


def _drop_pages_of(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # dirty pages cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
