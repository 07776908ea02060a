"""The CPU time of processes, as the kernel counts it: of work, of idling, of Java's compilers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

COMPILERS = "Java's compilers"
_COMPILER_THREADS = ("C1 CompilerThre", "C2 CompilerThre")
"""As the kernel cuts their names. They end some minutes after a broker's start."""
SETTLE_S, IDLE_S = 1.0, 5.0


class CpuMeter:
    """Adds up the CPU seconds of processes by name, from each `start` to `stop`.

    `work_s`: without `idle_s`, which the same processes take without work in as many `seconds`.
    Both have the threads of Java's compilers as `COMPILERS`. A thread that ended is not counted.
    """

    def __init__(self, processes: Mapping[str, Iterable[int]]) -> None:
        """`processes`: their ids."""
        self._processes = {name: tuple(pids) for name, pids in processes.items()}
        self.seconds, self.work_s = 0.0, dict.fromkeys((*processes, COMPILERS), 0.0)
        self.idle_s = dict(self.work_s)

    def start(self) -> None:
        self._before = self._read()

    def stop(self) -> None:
        """Ends; then blocks for `SETTLE_S` and `IDLE_S`, while the processes have no work."""
        seconds, used_s = self._since_start()
        time.sleep(SETTLE_S)
        self.start()
        time.sleep(IDLE_S)
        rested, idle_s = self._since_start()
        self.seconds += seconds
        for name, each_s in used_s.items():
            share_s = idle_s[name] * seconds / rested
            self.idle_s[name] += share_s
            self.work_s[name] += each_s - share_s

    def _since_start(self) -> tuple[float, dict[str, float]]:
        (began_s, before), (now_s, after) = self._before, self._read()
        found = dict.fromkeys(self.work_s, 0.0)
        for (name, thread), taken_s in after.items():
            found[name] += taken_s - before.get((name, thread), 0.0)
        return now_s - began_s, found

    def _read(self) -> tuple[float, dict[tuple[str, int], float]]:
        """Returns the time, and the CPU seconds of each thread by its process and its id."""
        found: dict[tuple[str, int], float] = {}
        for name, pids in self._processes.items():
            for task in (each for pid in pids for each in Path(f"/proc/{pid}/task").glob("*")):
                try:
                    thread = (task / "comm").read_text().strip()
                    taken_ns = int((task / "schedstat").read_text().split()[0])
                except OSError:
                    continue  # it has ended
                whose = COMPILERS if thread in _COMPILER_THREADS else name
                found[whose, int(task.name)] = taken_ns / 1e9
        return time.monotonic(), found
