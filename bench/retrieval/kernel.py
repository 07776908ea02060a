"""What the kernel counted, and its page cache: /proc/PID/io, the disk's own times, and dropping
what is cached.
"""

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
    """A block device since boot, all processes together. `busy_us`: time with at least one request
    in flight.
    """

    read_bytes: int
    busy_us: int


def process_read_bytes(pid: int | Literal["self"] = "self") -> int:
    """Returns the bytes that a process made the disk read, all its threads together: page faults
    and O_DIRECT included.

    Raises `ConfigError` where the kernel does not tell.
    """
    path = Path(f"/proc/{pid}/io")
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
    """Returns the counters of the device that `path` lies on, or None where it is not a block
    device of its own.
    """
    device = path.stat().st_dev
    try:
        stat = (_BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}" / "stat").read_text(
            encoding="ascii"
        )
    except OSError:
        return None
    fields = stat.split()
    return DiskTimes(read_bytes=int(fields[2]) * SECTOR_BYTES, busy_us=int(fields[9]) * 1_000)


def drop_page_cache(folders: Iterable[Path], *, everything: bool) -> Literal["all", "files"]:
    """Empties the page cache, so that a run starts cold, and returns of what: `all`, or only of the
    `files` in `folders`, if not `everything` is to go, or this is not root.

    Pages that a process has mapped stay. Blocks until what is dirty has been written.
    """
    if everything and os.access(_DROP_CACHES, os.W_OK):
        os.sync()
        _DROP_CACHES.write_text("3", encoding="ascii")
        return "all"
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                _forget(file)
    return "files"


def _forget(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # what is dirty cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
