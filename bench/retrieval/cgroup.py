"""Holding a process to a memory limit by the kernel: a cgroup of its own, v1 or v2, interpreter and
page cache included.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from carpool.errors import ConfigError

ROOT = Path("/sys/fs/cgroup")
HeldBy = Literal["cgroup", "none"]

# The shell enters the groups before it becomes the program, so that every byte of the program is
# counted.
_ENTER = (
    'for group in $CARPOOL_CGROUPS; do echo $$ > "$group/cgroup.procs" || exit 97; done; '
    'unset CARPOOL_CGROUPS; exec "$@"'
)
ENTER_FAILED = 97
NAME_PREFIX = "carpool-bench-"


class MemoryHeld(msgspec.Struct, frozen=True, kw_only=True):
    """What a group saw. `peak_bytes`: the most at any time; `oom_kills`: processes killed for want
    of memory; `read_bytes`: what the block layer counted for it, None where it does not.
    """

    limit_bytes: int | None
    peak_bytes: int | None
    oom_kills: int
    read_bytes: int | None


class Holder(Protocol):
    """Runs programs in a group. A context manager: made before, removed after the program has
    ended.
    """

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that runs `command` inside."""
        ...

    def environment(self) -> dict[str, str]:
        """Returns what must be added to the environment of that command."""
        ...

    def seen(self) -> MemoryHeld:
        """Returns the counters of the group."""
        ...

    def remove(self) -> None:
        """Removes the group once its processes have ended."""
        ...


class NoHolder:
    """Holds nothing: for machines where cgroups cannot be made, and then the report says so."""

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns `command`."""
        return list(command)

    def environment(self) -> dict[str, str]:
        """Returns nothing."""
        return {}

    def seen(self) -> MemoryHeld:
        """Returns that nothing was seen."""
        return MemoryHeld(limit_bytes=None, peak_bytes=None, oom_kills=0, read_bytes=None)

    def remove(self) -> None:
        """Does nothing."""


class CgroupV1:
    """A group of the v1 controllers `memory` and `blkio`."""

    def __init__(self, name: str, limit_bytes: int | None, root: Path = ROOT) -> None:
        """Makes the group. Raises `ConfigError` where it cannot."""
        self._memory = _made(root / "memory" / name)
        blkio = root / "blkio"
        self._blkio = _made(blkio / name) if blkio.is_dir() else None
        self._limit_bytes = limit_bytes
        if limit_bytes is not None:
            _write(self._memory / "memory.limit_in_bytes", limit_bytes)
            swap = self._memory / "memory.memsw.limit_in_bytes"
            if swap.exists():
                _write(swap, limit_bytes)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of the group."""
        return (self._memory,) if self._blkio is None else (self._memory, self._blkio)

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that enters the group and becomes `command`."""
        return ["/bin/sh", "-c", _ENTER, "sh", *command]

    def environment(self) -> dict[str, str]:
        """Returns the names of the folders for that command."""
        return {"CARPOOL_CGROUPS": " ".join(map(str, self.folders))}

    def seen(self) -> MemoryHeld:
        """Returns the counters of the group."""
        return MemoryHeld(
            limit_bytes=self._limit_bytes,
            peak_bytes=int((self._memory / "memory.max_usage_in_bytes").read_text()),
            oom_kills=_field(self._memory / "memory.oom_control", "oom_kill"),
            read_bytes=None if self._blkio is None else _reads_v1(self._blkio),
        )

    def remove(self) -> None:
        """Removes the group; see `Holder.remove`."""
        _remove(self.folders)


class CgroupV2:
    """A group of the unified hierarchy, directly below its root."""

    def __init__(self, name: str, limit_bytes: int | None, root: Path = ROOT) -> None:
        """Makes the group. Raises `ConfigError` where it cannot."""
        for controller in ("+memory", "+io"):
            _write(root / "cgroup.subtree_control", controller)
        self._folder = _made(root / name)
        self._limit_bytes = limit_bytes
        if limit_bytes is not None:
            _write(self._folder / "memory.max", limit_bytes)
            swap = self._folder / "memory.swap.max"
            if swap.exists():
                _write(swap, 0)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folder of the group."""
        return (self._folder,)

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that enters the group and becomes `command`."""
        return ["/bin/sh", "-c", _ENTER, "sh", *command]

    def environment(self) -> dict[str, str]:
        """Returns the name of the folder for that command."""
        return {"CARPOOL_CGROUPS": str(self._folder)}

    def seen(self) -> MemoryHeld:
        """Returns the counters of the group."""
        peak = self._folder / "memory.peak"  # since Linux 5.19
        return MemoryHeld(
            limit_bytes=self._limit_bytes,
            peak_bytes=int(peak.read_text()) if peak.exists() else None,
            oom_kills=_field(self._folder / "memory.events", "oom_kill"),
            read_bytes=_reads_v2(self._folder),
        )

    def remove(self) -> None:
        """Removes the group; see `Holder.remove`."""
        _remove(self.folders)


def group_name() -> str:
    """Returns a name for a group that says which process made it."""
    return f"{NAME_PREFIX}{os.getpid()}-{time.monotonic_ns()}"


def memory_holder(held_by: HeldBy, name: str, limit_bytes: int | None, root: Path = ROOT) -> Holder:
    """Returns what holds a program to `limit_bytes` (None: only watched). The caller removes it.

    Groups that a bench left behind when it was killed are removed too.

    Raises `ConfigError` where memory shall be held and cannot.
    """
    if held_by == "none":
        return NoHolder()
    _sweep(root)
    if (root / "memory" / "memory.limit_in_bytes").exists():
        return CgroupV1(name, limit_bytes, root)
    controllers = root / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text().split():
        return CgroupV2(name, limit_bytes, root)
    raise ConfigError(
        f"there is no memory controller below {root}: a contestant could take what it likes, and "
        "the kernel's page cache would hide every read. Run where cgroups are, or give "
        "--memory-held-by none, which the report then says"
    )


def _made(folder: Path) -> Path:
    try:
        folder.mkdir()
    except OSError as error:
        raise ConfigError(
            f"cannot make the cgroup {folder} ({error.strerror}): run as root (in Docker: "
            "--privileged), or give --memory-held-by none, which the report then says"
        ) from error
    return folder


def _write(path: Path, value: int | str) -> None:
    try:
        path.write_text(str(value))
    except OSError as error:
        raise ConfigError(
            f"cannot write {value} to {path} ({error.strerror}): memory is not held; run as root, "
            "or give --memory-held-by none, which the report then says"
        ) from error


def _field(path: Path, name: str) -> int:
    found = dict(line.split(maxsplit=1) for line in path.read_text().splitlines() if " " in line)
    return int(found.get(name, 0))


def _reads_v1(folder: Path) -> int | None:
    try:
        lines = (folder / "blkio.throttle.io_service_bytes").read_text().splitlines()
    except OSError:
        return None
    found = sum(
        int(fields[2])
        for fields in map(str.split, lines)
        if len(fields) == 3 and fields[1] == "Read"
    )
    return (
        found or None
    )  # since Linux 6.10 it counts only devices for which somebody has set a limit


def _reads_v2(folder: Path) -> int | None:
    try:
        words = (folder / "io.stat").read_text().split()
    except OSError:
        return None
    return sum(int(word.removeprefix("rbytes=")) for word in words if word.startswith("rbytes="))


def _sweep(root: Path) -> None:
    """Removes empty groups of processes that are no more."""
    for base in (root, root / "memory", root / "blkio"):
        for folder in sorted(base.glob(f"{NAME_PREFIX}*")):
            made_by = folder.name.removeprefix(NAME_PREFIX).partition("-")[0]
            if not Path("/proc", made_by).exists():
                with contextlib.suppress(OSError):  # still in use
                    os.rmdir(folder)


def _remove(folders: Sequence[Path]) -> None:
    """Removes folders of groups. A process that has just ended can hold its group for a moment."""
    for folder in folders:
        for wait_s in (0.0, 0.05, 0.2, 1.0):
            time.sleep(wait_s)
            try:
                os.rmdir(folder)
                break
            except OSError:
                continue
