"""How much memory processes take while they work: sampled from /proc on a thread, peaks kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from carpool.errors import ConfigError

KIB = 1024


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a process. `anonymous`: its own, no file behind it (RssAnon); `resident`: all that
    it holds (VmRSS).
    """

    anonymous_bytes: int
    resident_bytes: int


class MemoryPeaks(msgspec.Struct, frozen=True, kw_only=True):
    """The most that was seen of each, in `samples` looks; between two looks there may have been
    more.
    """

    anonymous_bytes_max: int
    resident_bytes_max: int
    samples: int


def parse_status(text: str) -> MemoryUse:
    """Returns the memory that a /proc/PID/status tells. Raises `ValueError` where it tells none (a
    process that ended).
    """
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        anonymous, resident = (int(fields[name].split()[0]) * KIB for name in ("RssAnon", "VmRSS"))
    except (KeyError, IndexError) as error:
        raise ValueError(f"no memory in the status of a process: {error}") from error
    return MemoryUse(anonymous_bytes=anonymous, resident_bytes=resident)


def memory_of(pid: int) -> MemoryUse:
    """Returns the memory of a process now. Raises `ValueError` when it has ended, `ConfigError`
    where there is no /proc.
    """
    path = Path(f"/proc/{pid}/status")
    try:
        return parse_status(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self/status").exists():
            raise ConfigError(
                "memory is measured from /proc, which this system does not have; run on Linux"
            ) from None
        raise ValueError(f"process {pid} has ended") from None


class MemoryWatch:
    """Looks at processes every `interval_s` until it is left. A context manager."""

    def __init__(
        self,
        pids: Mapping[str, int],
        interval_s: float = 0.2,
        look: Callable[[int], MemoryUse] = memory_of,
    ) -> None:
        """`pids`: name to process id."""
        self._pids = dict(pids)
        self._interval_s = interval_s
        self._look = look
        self._uses: dict[str, list[MemoryUse]] = {name: [] for name in pids}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    def peaks(self) -> dict[str, MemoryPeaks]:
        """Returns the peaks of every process that was seen at least once."""
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
                    self._uses[name].append(self._look(pid))
                except ValueError:
                    continue  # it has ended; that it did is for others to say
            if self._stopping.wait(self._interval_s):
                return

    def __enter__(self) -> MemoryWatch:
        """Begins to look."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends."""
        self._stopping.set()
        self._thread.join()
