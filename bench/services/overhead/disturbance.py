"""What the machine did meanwhile: CPU time that the host took, how long threads waited for a CPU.
Linux only; else unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

PROC = Path("/proc")
COLUMNS = 8
"""Of the line `cpu` in /proc/stat, up to what the host took; guests are counted twice."""
STOLEN_COLUMN = 7

ThreadId = tuple[int, int]


class MachineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Of one turn. `stolen_share`: of all cores' time, what the host gave to others; `cpu_wait_us`:
    the mean wait of a thread of the measured processes from having work to running. None: the
    system does not tell.
    """

    stolen_share: float | None
    cpu_wait_us: float | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start. `waits`: by process and thread, nanoseconds of waiting and how
    often it ran.
    """

    total_ticks: int
    stolen_ticks: int
    waits: dict[ThreadId, tuple[int, int]]


def snapshot(pids: Collection[int], proc: Path = PROC) -> Snapshot:
    """Returns the counters of now, with those of every thread of these processes."""
    total, stolen = _ticks(proc)
    waits: dict[ThreadId, tuple[int, int]] = {}
    for pid in pids:
        for path in (proc / str(pid) / "task").glob("*/schedstat"):
            try:
                _, wait_ns, runs = map(int, path.read_text().split())
            except (OSError, ValueError):  # it has ended
                continue
            waits[pid, int(path.parent.name)] = wait_ns, runs
    return Snapshot(total_ticks=total, stolen_ticks=stolen, waits=waits)


def between(before: Snapshot, after: Snapshot) -> MachineLoad:
    """Returns what the machine did between two snapshots. Threads that ended meanwhile are left
    out.
    """
    total = after.total_ticks - before.total_ticks
    wait_ns, runs = _added(before.waits, after.waits)
    return MachineLoad(
        stolen_share=(after.stolen_ticks - before.stolen_ticks) / total if total > 0 else None,
        cpu_wait_us=wait_ns / runs / 1_000 if runs > 0 else None,
    )


def _added(
    before: Mapping[ThreadId, tuple[int, int]], after: Mapping[ThreadId, tuple[int, int]]
) -> tuple[int, int]:
    all_wait_ns = all_runs = 0
    for thread, (wait_ns, runs) in after.items():
        began_wait_ns, began_runs = before.get(thread, (0, 0))
        all_wait_ns += wait_ns - began_wait_ns
        all_runs += runs - began_runs
    return all_wait_ns, all_runs


def _ticks(proc: Path) -> tuple[int, int]:
    try:
        first = (proc / "stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return 0, 0
    columns = [int(column) for column in first.split()[1 : 1 + COLUMNS]]
    return sum(columns), columns[STOLEN_COLUMN]
