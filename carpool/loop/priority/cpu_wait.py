"""Measures the wait of a thread for a CPU, from the scheduler statistics of Linux."""

from __future__ import annotations

from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")


class CpuWait:
    """Measures the thread that calls it, which must always be the same one."""

    def __init__(self, path: Path = SCHEDSTAT) -> None:
        """`path`: a file with run time and wait in nanoseconds, and the number of runs."""
        self._path = path
        self._last: tuple[int, int] | None = None

    def mean_us(self) -> float | None:
        """Returns the mean wait before a run since the last call; None: unknown.

        Takes microseconds.
        """
        try:
            _, wait_ns, runs = map(int, self._path.read_text().split())
        except (OSError, ValueError):
            return None
        last, self._last = self._last, (wait_ns, runs)
        if last is None:
            return None
        return (wait_ns - last[0]) / max(1, runs - last[1]) / 1_000
