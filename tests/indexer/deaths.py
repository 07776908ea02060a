"""Kills a process at one of the changes that the file system keeps."""

from __future__ import annotations

import os
import signal
from typing import Any

STEPS = ("fsync", "replace", "unlink", "rmdir")


class StepCount:
    """Counts these changes in this process, in `taken`, and kills it before number `kill_at`."""

    def __init__(self, kill_at: int | None) -> None:
        """`kill_at`: from 1; None: never."""
        self.taken, self._kill_at = 0, kill_at
        for name in STEPS:
            real = getattr(os, name)

            def step(*args: Any, real: Any = real, **kwargs: Any) -> Any:
                self._count()
                return real(*args, **kwargs)

            setattr(os, name, step)

    def _count(self) -> None:
        self.taken += 1
        if self.taken == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
