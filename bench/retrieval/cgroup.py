"""Memory limit of a process by the kernel: a cgroup of its own, v1 or v2, page cache included."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from carpool.errors import ConfigError

ROOT = Path("/sys/fs/cgroup")
LimitedBy = Literal["cgroup", "none"]

# The shell enters the groups before it becomes the program, so that every byte is counted.
_ENTER = (
    'for group in $CARPOOL_CGROUPS; do echo $$ > "$group/cgroup.procs" || exit 97; done; '
    'unset CARPOOL_CGROUPS; exec "$@"'
)
ENTER_FAILED = 97
NAME_PREFIX = "carpool-bench-"
_HINT = "run as root (in Docker: --privileged), or give --memory-held-by none"


class GroupCounters(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a group. `oom_kills`: processes killed because memory ran out.

    `read_bytes`: by the block layer; None where it does not count.
    """

    limit_bytes: int | None
    peak_bytes: int | None
    oom_kills: int
    read_bytes: int | None


class MemoryGroup:
    """A cgroup, or nothing: without folders it limits and counts nothing."""

    def __init__(
        self, folders: Sequence[Path] = (), limit_bytes: int | None = None, *, is_v2: bool = False
    ) -> None:
        """`folders` exist already: one of v2, or those of the v1 controllers, memory first."""
        self._folders = tuple(folders)
        self._limit_bytes = limit_bytes
        self._is_v2 = is_v2

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that enters the group and becomes `command`."""
        return ["/bin/sh", "-c", _ENTER, "sh", *command] if self._folders else list(command)

    def environment(self) -> dict[str, str]:
        """Returns variables that the command needs."""
        return {"CARPOOL_CGROUPS": " ".join(map(str, self._folders))} if self._folders else {}

    def counters(self) -> GroupCounters:
        """Returns the counters of the group."""
        if not self._folders:
            return GroupCounters(limit_bytes=None, peak_bytes=None, oom_kills=0, read_bytes=None)
        memory = self._folders[0]
        peak = memory / ("memory.peak" if self._is_v2 else "memory.max_usage_in_bytes")
        events = memory / ("memory.events" if self._is_v2 else "memory.oom_control")
        return GroupCounters(
            limit_bytes=self._limit_bytes,
            peak_bytes=int(peak.read_text()) if peak.exists() else None,  # v2: since Linux 5.19
            oom_kills=_oom_kills(events),
            read_bytes=self._read_bytes(),
        )

    def remove(self) -> None:
        """Removes the group once its processes have ended. Blocks for a moment."""
        for folder in self._folders:
            for wait_s in (0.0, 0.05, 0.2, 1.0):  # a process that has just ended is still listed
                time.sleep(wait_s)
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
                    break

    def _read_bytes(self) -> int | None:
        name = "io.stat" if self._is_v2 else "blkio.throttle.io_service_bytes"
        try:
            text = (self._folders[-1] / name).read_text()
        except OSError:
            return None
        if self._is_v2:
            return sum(
                int(word.removeprefix("rbytes="))
                for word in text.split()
                if word.startswith("rbytes=")
            )
        fields = [line.split() for line in text.splitlines()]
        counted = sum(int(each[2]) for each in fields if len(each) == 3 and each[1] == "Read")
        return counted or None  # since Linux 6.10 only devices with a limit are counted


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
    _remove_stale(root)
    controllers = root / "cgroup.controllers"
    if (root / "memory" / "memory.limit_in_bytes").exists():
        bases = [root / "memory", *([root / "blkio"] if (root / "blkio").is_dir() else [])]
        limits = {
            "memory.limit_in_bytes": limit_bytes,
            "memory.memsw.limit_in_bytes": limit_bytes,
        }
    elif controllers.exists() and "memory" in controllers.read_text().split():
        for controller in ("+memory", "+io"):
            _write(root / "cgroup.subtree_control", controller)
        bases, limits = [root], {"memory.max": limit_bytes, "memory.swap.max": 0}
    else:
        raise ConfigError(f"there is no memory controller below {root}: {_HINT}")
    folders = [base / name for base in bases]
    for folder in folders:
        try:
            folder.mkdir()
        except OSError as error:
            raise ConfigError(
                f"cannot make the cgroup {folder} ({error.strerror}): {_HINT}"
            ) from error
    if limit_bytes is not None:
        for number, (file, value) in enumerate(limits.items()):
            if number == 0 or (folders[0] / file).exists():  # the limit of swap may be missing
                _write(folders[0] / file, value)
    return MemoryGroup(folders, limit_bytes, is_v2=bases == [root])


def _write(path: Path, value: int | str | None) -> None:
    try:
        path.write_text(str(value))
    except OSError as error:
        raise ConfigError(f"cannot write {value} to {path} ({error.strerror}): {_HINT}") from error


def _oom_kills(path: Path) -> int:
    found = dict(line.split(maxsplit=1) for line in path.read_text().splitlines() if " " in line)
    return int(found.get("oom_kill", 0))


def _remove_stale(root: Path) -> None:
    """Removes empty groups of processes that have ended."""
    for base in (root, root / "memory", root / "blkio"):
        for folder in sorted(base.glob(f"{NAME_PREFIX}*")):
            made_by = folder.name.removeprefix(NAME_PREFIX).partition("-")[0]
            if not Path("/proc", made_by).exists():
                with contextlib.suppress(OSError):  # still in use
                    os.rmdir(folder)
