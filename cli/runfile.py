"""The file `run.json`: what a `carpool up` runs, and at which addresses."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from carpool.disk.files import write_atomically


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of a running `carpool up`. `http`: name of a service to host:port.

    `prefix`: its `kafka.prefix`.
    """

    pid: int
    bootstrap: str
    prefix: str = ""
    http: dict[str, str]
    is_ready: bool = False


class RunFile:
    """The file in the state folder. The file of a dead process counts as absent."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "run.json"

    def write(self, run: Run) -> None:
        """Writes the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"
        try:
            write_atomically(self.path, content)
        except OSError as error:  # of a full disk it names no file
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def read(self) -> Run | None:
        """Returns what runs; None without a file, for a bad file, and for a dead process."""
        try:
            run = msgspec.json.decode(self.path.read_bytes(), type=Run)
        except (OSError, msgspec.DecodeError):
            return None
        return run if _lives(run.pid) else None

    def remove(self) -> None:
        """Removes the file if it exists."""
        self.path.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    with suppress(PermissionError):  # it is another user's
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
