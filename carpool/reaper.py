"""Ends the children of a process that ended without ending them (SIGKILL, a crash).

A separate process that reads `+GROUP` and `-GROUP` lines from a pipe. When the pipe closes, its
writer is gone, and every process group on the list is ended. It is run as a file and needs the
standard library only:

python -I reaper.py < PIPE
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

GRACE_S = 5.0


def main() -> None:
    """Reads until the pipe closes, then ends the groups: SIGTERM, SIGKILL after `GRACE_S`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when its writer ends
    groups: dict[int, None] = {}
    for line in sys.stdin:
        if line.startswith("+"):
            groups[int(line[1:])] = None
        else:
            groups.pop(int(line[1:]), None)
    for group in groups:
        _signal(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while any(_signal(group, 0) for group in groups) and time.monotonic() < deadline:
        time.sleep(0.05)
    for group in groups:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Signals a process group; returns whether it exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    main()
