"""The memory of processes while they work: sampled from /proc on a thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from carpool.errors import ConfigError

KIB = 1024


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a process: anonymous (RssAnon), and all that is resident (VmRSS)."""

    anonymous_bytes: int
    resident_bytes: int


class MemoryPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """The largest of `samples` readings; between two of them a process may use more."""

    anonymous_bytes_max: int
    resident_bytes_max: int
    samples: int


def memory_of(pid: int) -> MemoryUse:
    """Returns the memory of a process now.

    Raises `ValueError` where the process has ended, `ConfigError` where there is no /proc.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        fields = dict(line.split(":", 1) for line in text.splitlines())
        anonymous, resident = (int(fields[name].split()[0]) * KIB for name in ("RssAnon", "VmRSS"))
    except (FileNotFoundError, ProcessLookupError, KeyError):
        if not Path("/proc/self/status").exists():
            raise ConfigError(
                "memory is measured from /proc, which this system does not have; run on Linux"
            ) from None
        raise ValueError(f"process {pid} has ended") from None
    return MemoryUse(anonymous_bytes=anonymous, resident_bytes=resident)


class MemoryWatch:
    """Reads the memory of processes every `interval_s`. A context manager."""

    def __init__(self, pids: Mapping[str, int], interval_s: float = 0.2) -> None:
        """`pids`: name to process id."""
        self._pids = dict(pids)
        self._interval_s = interval_s
        self._uses: dict[str, list[MemoryUse]] = {name: [] for name in pids}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    def peaks(self) -> dict[str, MemoryPeaks]:
        """Returns the peaks of every process that was read at least once."""
        return {
            name: MemoryPeaks(
                anonymous_bytes_max=max(use.anonymous_bytes for use in uses),
                resident_bytes_max=max(use.resident_bytes for use in uses),
                samples=len(uses),
            )
            for name, uses in self._uses.items()
            if uses
        }

    def _run(self) -> None:
        while True:
            for name, pid in self._pids.items():
                try:
                    self._uses[name].append(memory_of(pid))
                except ValueError:
                    continue  # it has ended, and others report that
            if self._stopping.wait(self._interval_s):
                return

    def __enter__(self) -> MemoryWatch:
        """Begins to read."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops reading."""
        self._stopping.set()
        self._thread.join()
