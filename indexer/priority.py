"""Lets searches go first: what an indexer does can wait."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NICE = 10
"""A tenth of the share that a process has by default, where all processors are taken."""


def lower_priority() -> None:
    """Lowers the priority of this process, and of the threads that it starts from now on.

    Linux may share processors among sessions first (`sched_autogroup_enabled`), so a session that
    is the process's own gets the lower priority, too.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
        if os.getsid(0) == os.getpid():
            Path("/proc/self/autogroup").write_text(str(NICE))
