"""The memory of a process, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from carpool.errors import ConfigError

KIB = 1024


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """What is resident now, the most that ever was, and the most without pages of files.

    The last one takes the pages of files as they are now.
    """

    resident_bytes: int
    resident_bytes_max: int
    anonymous_bytes_max: int


def memory_of(pid: int) -> MemoryUse:
    """Returns the memory of a process. Raises `ConfigError` where /proc does not know it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"/proc has no process {pid} ({error}): it has ended, or this is not Linux"
        ) from error
    fields = dict(line.split(":", 1) for line in text.splitlines())
    now, most, of_files, shared = (
        int(fields[name].split()[0]) * KIB for name in ("VmRSS", "VmHWM", "RssFile", "RssShmem")
    )
    return MemoryUse(
        resident_bytes=now, resident_bytes_max=most, anonymous_bytes_max=most - of_files - shared
    )
