"""Processes that must not outlive this process; a reaper process has the list of their groups."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, AnyStr


class GuardedProcess(subprocess.Popen[AnyStr]):
    """A process in a session of its own. Its group ends when this process does, even by SIGKILL.

    Call `wait` when it has ended: until then its group is listed.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """Starts it, with `options` of `subprocess.Popen`."""
        _list()  # before there is a child that nobody would end
        super().__init__(command, start_new_session=True, **options)
        _tell_reaper(f"+{self.pid}\n")

    def wait(self, timeout: float | None = None) -> int:
        status = super().wait(timeout)
        _tell_reaper(f"-{self.pid}\n")
        return status


@cache
def _list() -> IO[bytes]:
    """Starts the reaper, and returns the pipe of its list. When it closes, the groups are ended."""
    reaper = subprocess.Popen(
        [sys.executable, "-I", str(Path(__file__).with_name("reaper.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",  # it uses no folder of ours
    )
    atexit.register(reaper.__exit__, None, None, None)
    assert reaper.stdin is not None, "the reaper was started with a pipe"
    return reaper.stdin


def _tell_reaper(line: str) -> None:
    with contextlib.suppress(BrokenPipeError, ValueError):
        _list().write(line.encode())
        _list().flush()
