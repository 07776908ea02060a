"""Memory limit of a process by the kernel: a cgroup of its own, v1 or v2, page cache included."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from carpool.errors import ConfigError

ROOT = Path("/sys/fs/cgroup")
DROP_CACHES = Path("/proc/sys/vm/drop_caches")

# The shell enters the group before it becomes the program, so that every byte is counted.
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


_V1 = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes")
_V2 = ("memory.max", "memory.swap.max", "memory.peak")
"""The files of a version: the limit, that with swap, and the most memory."""


class MemoryGroup:
    """A cgroup with a limit. The caller removes it."""

    def __init__(self, limit_bytes: int | None, root: Path = ROOT) -> None:
        """Makes the group; without a limit it only counts. Raises `ConfigError` where it cannot."""
        is_v1 = (root / "memory" / _V1[0]).exists()
        folder = f"carpool-bench-{os.getpid()}-{time.monotonic_ns()}"
        self._folder = root / "memory" / folder if is_v1 else root / folder
        limit, swap, peak = (self._folder / name for name in (_V1 if is_v1 else _V2))
        self._events = self._folder / ("memory.oom_control" if is_v1 else "memory.events")
        self.peak_path = peak
        """The file of the most memory that was used; v2 has it since Linux 5.19."""
        try:
            if not is_v1:
                (root / "cgroup.subtree_control").write_text("+memory")
            self._folder.mkdir()
            if limit_bytes is not None:
                limit.write_text(str(limit_bytes))
                if swap.exists():
                    swap.write_text(str(limit_bytes if is_v1 else 0))
        except OSError as error:
            raise ConfigError(
                f"memory cannot be limited ({error}): run as root (in Docker: --privileged), or "
                "give --memory-held-by none"
            ) from error

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that enters the group and becomes `command`."""
        return ["/bin/sh", "-c", _ENTER, str(self._folder), *command]

    def has_killed(self) -> bool:
        """Whether a process was killed because memory ran out."""
        lines = self._events.read_text().splitlines()
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)

    def remove(self) -> None:
        """Removes the group once its processes have ended. Blocks for a moment."""
        for wait_s in (0.0, 0.05, 0.2, 1.0):  # a process that has just ended is still listed
            time.sleep(wait_s)
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)
                return


class Peak:
    """The most memory of a group from now on, without the page cache of files that were loaded.

    Where the kernel cannot begin again (v2 before Linux 6.12) it counts from the beginning.
    """

    def __init__(self, path: Path) -> None:
        """`path`: of `MemoryGroup.peak_path`. Raises `ConfigError` where the cache stays."""
        drop_page_cache()
        self._file = os.open(path, os.O_RDWR)
        with contextlib.suppress(OSError):
            os.write(self._file, b"0")

    def read_bytes(self) -> int:
        """Returns the most memory so far."""
        return int(os.pread(self._file, 32, 0))


def drop_page_cache() -> None:
    """Empties the page cache; pages that a process has mapped stay. Raises `ConfigError`."""
    os.sync()
    try:
        DROP_CACHES.write_text("3", encoding="ascii")
    except OSError as error:
        raise ConfigError(f"the page cache cannot be emptied ({error}): run as root") from error
