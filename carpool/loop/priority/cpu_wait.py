"""How long does a thread that has work wait for a CPU? What Linux says of the calling thread, and
nothing elsewhere.
"""

from __future__ import annotations

from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")


class CpuWait:
    """Of the thread that calls it, always the same one."""

    def __init__(self, path: Path = SCHEDSTAT) -> None:
        """`path`: run time and wait in nanoseconds, and how often the thread ran."""
        self._path = path
        self._last: tuple[int, int] | None = None

    def mean_us(self) -> float | None:
        """Returns the mean wait before the thread ran, since the last call: 0 where it ran on. None
        where that is not known.

        Costs microseconds.
        """
        try:
            _, wait_ns, runs = map(int, self._path.read_text().split())
        except (OSError, ValueError):
            return None
        last, self._last = self._last, (wait_ns, runs)
        if last is None:
            return None
        return (wait_ns - last[0]) / max(1, runs - last[1]) / 1_000
