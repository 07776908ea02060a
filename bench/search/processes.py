"""Starts the process of a contestant in its cgroup, waits for it, and judges how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from bench.search.cgroup import MemoryGroup
from bench.search.child import (
    FIGURES_NAME,
    OUT_OF_MEMORY,
    ChildRequest,
    ContestantFigures,
    TunedFigures,
)
from bench.search.contestants.contestant import THREADS
from carpool.guard import GuardedProcess

LOG_NAME = "log"
LOG_SHOWN_BYTES = 600

Status = Literal["ok", "out of memory", "timed out", "failed"]


class ChildEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended."""

    status: Status
    error: str = ""
    figures: ContestantFigures | TunedFigures | None = None


def run_child(request: ChildRequest, folder: Path, *, is_held: bool, timeout_s: float) -> ChildEnd:
    """Runs a request in a process of its own and returns how it ended. Blocks.

    The process is dead when this returns or raises. Request, log, figures and ids are in `folder`,
    which is made. A process that ran out of memory or time, or failed, is a result. `is_held`: the
    kernel limits and counts its memory; raises `ConfigError` where it cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    request_path = folder / "request.json"
    request_path.write_bytes(msgspec.json.encode(request))
    command = [sys.executable, "-m", f"{__package__}.child", str(request_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    group = MemoryGroup(request.memory_bytes) if is_held else None
    if group and group.peak_path.exists():
        command.append(str(group.peak_path))
    try:
        with (folder / LOG_NAME).open("wb") as log:
            process = GuardedProcess[bytes](
                group.command(command) if group else command,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout_s)
        finally:
            process.kill()
            process.wait()
        if code is None:
            return ChildEnd(status="timed out", error=f"not done after {timeout_s:.0f} s")
        return _judge(code, group, request, folder)
    finally:
        if group:
            group.remove()


def _judge(code: int, group: MemoryGroup | None, request: ChildRequest, folder: Path) -> ChildEnd:
    if code == 0:
        content = (folder / FIGURES_NAME).read_bytes()
        figures = msgspec.json.decode(content, type=ContestantFigures | TunedFigures)
        return ChildEnd(status="ok", figures=figures)
    if group and group.has_killed():
        limit = f"the kernel killed it at its limit of {request.memory_bytes} bytes"
        return ChildEnd(status="out of memory", error=limit)
    log = (folder / LOG_NAME).read_bytes()[-LOG_SHOWN_BYTES:].decode(errors="replace").strip()
    by = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
    status: Status = "out of memory" if code == OUT_OF_MEMORY else "failed"
    return ChildEnd(status=status, error=f"it ended with {by}: {log or 'no output'}")
