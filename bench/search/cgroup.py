"""Memory limit of a process by the kernel: a cgroup of its own, v1 or v2, page cache included."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from carpool.errors import ConfigError

ROOT = Path("/sys/fs/cgroup")
LimitedBy = Literal["cgroup", "none"]

# The shell enters the group before it becomes the program, so that every byte is counted.
_ENTER = 'echo $$ > "$CARPOOL_CGROUP/cgroup.procs" || exit 97; unset CARPOOL_CGROUP; exec "$@"'
ENTER_FAILED = 97
NAME_PREFIX = "carpool-bench-"
_HINT = "run as root (in Docker: --privileged), or give --memory-held-by none"


class MemoryGroup:
    """A cgroup, or nothing: without a folder it limits and counts nothing."""

    def __init__(self, folder: Path | None = None, *, is_v2: bool = False) -> None:
        """`folder` exists already."""
        self._folder = folder
        self._is_v2 = is_v2

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that enters the group and becomes `command`."""
        return ["/bin/sh", "-c", _ENTER, "sh", *command] if self._folder else list(command)

    def environment(self) -> dict[str, str]:
        """Returns variables that the command needs."""
        return {"CARPOOL_CGROUP": str(self._folder)} if self._folder else {}

    def peak_bytes(self) -> int | None:
        """Returns the most memory that was used; None where the kernel does not count it."""
        if self._folder is None:
            return None
        peak = self._folder / ("memory.peak" if self._is_v2 else "memory.max_usage_in_bytes")
        return int(peak.read_text()) if peak.exists() else None  # v2: since Linux 5.19

    def oom_kills(self) -> int:
        """Returns how many processes were killed because memory ran out."""
        if self._folder is None:
            return 0
        events = self._folder / ("memory.events" if self._is_v2 else "memory.oom_control")
        lines = events.read_text().splitlines()
        return int(dict(line.split(maxsplit=1) for line in lines if " " in line).get("oom_kill", 0))

    def remove(self) -> None:
        """Removes the group once its processes have ended. Blocks for a moment."""
        for wait_s in (0.0, 0.05, 0.2, 1.0):  # a process that has just ended is still listed
            time.sleep(wait_s)
            with contextlib.suppress(OSError):
                if self._folder is not None:
                    os.rmdir(self._folder)
                return


def group_name() -> str:
    """Returns a new group name that contains the id of this process."""
    return f"{NAME_PREFIX}{os.getpid()}-{time.monotonic_ns()}"


def memory_group(
    limited_by: LimitedBy, name: str, limit_bytes: int | None, root: Path = ROOT
) -> MemoryGroup:
    """Returns a group with `limit_bytes` (None: it only counts). The caller removes it.

    Also removes groups of benches that were killed. Raises `ConfigError` where no group can be
    made.
    """
    if limited_by == "none":
        return MemoryGroup()
    controllers = root / "cgroup.controllers"
    is_v2 = not (root / "memory" / "memory.limit_in_bytes").exists()
    base = root if is_v2 else root / "memory"
    _remove_stale(base)
    limits: dict[str, int | None]
    if not is_v2:
        limits = {"memory.limit_in_bytes": limit_bytes, "memory.memsw.limit_in_bytes": limit_bytes}
    elif controllers.exists() and "memory" in controllers.read_text().split():
        _write(root / "cgroup.subtree_control", "+memory")
        limits = {"memory.max": limit_bytes, "memory.swap.max": 0}
    else:
        raise ConfigError(f"there is no memory controller below {root}: {_HINT}")
    folder = base / name
    try:
        folder.mkdir()
    except OSError as error:
        raise ConfigError(f"cannot make the cgroup {folder} ({error.strerror}): {_HINT}") from error
    if limit_bytes is not None:
        for number, (file, value) in enumerate(limits.items()):
            if number == 0 or (folder / file).exists():  # the limit of swap may be missing
                _write(folder / file, value)
    return MemoryGroup(folder, is_v2=is_v2)


def _write(path: Path, value: int | str | None) -> None:
    try:
        path.write_text(str(value))
    except OSError as error:
        raise ConfigError(f"cannot write {value} to {path} ({error.strerror}): {_HINT}") from error


def _remove_stale(base: Path) -> None:
    """Removes empty groups of processes that have ended."""
    for folder in sorted(base.glob(f"{NAME_PREFIX}*")):
        made_by = folder.name.removeprefix(NAME_PREFIX).partition("-")[0]
        if not Path("/proc", made_by).exists():
            with contextlib.suppress(OSError):  # still in use
                os.rmdir(folder)
