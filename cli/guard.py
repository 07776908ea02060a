"""Process groups that must not outlive this process; a reaper process has the list."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path


class Guard:
    """Starts the reaper, which ends the listed groups when this process dies."""

    def __init__(self) -> None:
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("reaper.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        """Adds a process group to the list."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Removes a process group that has ended."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Ends the reaper, which ends the groups that are still listed. Blocks."""
        assert self._reaper.stdin is not None, "the reaper was started with a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._reaper.stdin.close()
        self._reaper.wait()

    def _tell(self, line: str) -> None:
        assert self._reaper.stdin is not None, "the reaper was started with a pipe"
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._reaper.stdin.write(line.encode())
            self._reaper.stdin.flush()
