"""How busy others were meanwhile: the share of the machine's CPU time that neither idled nor was
this process's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

STAT = Path("/proc/stat")
IDLE_COLUMNS = (3, 4)  # idle, and waiting for a disk
COLUMNS = 8  # up to what the host took; guests are counted twice


class OthersShare:
    """Measures while it is entered; `share` is there afterwards, from 0 to 1. 0 where the system
    does not tell.
    """

    def __init__(self) -> None:
        self.share = 0.0

    def __enter__(self) -> Self:
        """Begins."""
        self._began_s = (*_cpu_s(), time.process_time())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends."""
        total_s, idle_s, own_s = (
            end - begin
            for end, begin in zip((*_cpu_s(), time.process_time()), self._began_s, strict=True)
        )
        if total_s > 0:
            self.share = max(0.0, total_s - idle_s - own_s) / total_s


def _cpu_s() -> tuple[float, float]:
    """CPU time of all cores since the start, and what of it was idle."""
    try:
        first = STAT.read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return 0.0, 0.0
    ticks = [int(column) for column in first.split()[1 : 1 + COLUMNS]]
    hertz = os.sysconf("SC_CLK_TCK")
    return sum(ticks) / hertz, sum(ticks[column] for column in IDLE_COLUMNS) / hertz
