"""Ends what `carpool up` started, when `carpool up` itself ends without doing so (SIGKILL, a
crash).

A process of its own that reads `+GROUP` and `-GROUP` lines from the pipe it was given; when the
pipe closes, its writer is gone, and every process group that is still listed is ended. Run as a
file, with nothing but the standard library:

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
    """Keeps the list until the pipe closes, then ends what is on it: SIGTERM, and SIGKILL `GRACE_S`
    later.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it goes when its writer goes, not before
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
    """Signals a process group; returns whether there was one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    main()
