"""Starts the process of a contestant in its cgroup, waits for it, and judges how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec

from bench.search.cgroup import ENTER_FAILED, LimitedBy, MemoryGroup, group_name, memory_group
from bench.search.child import OUTCOME_NAME, ChildOutcome, ChildRequest
from bench.search.measure import monotonic_us

LOG_NAME = "log"
LOG_SHOWN_BYTES = 600

Status = Literal["ok", "out of memory", "timed out", "failed"]


class ChildEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended. `peak_bytes`: of its memory, None where nothing counts it."""

    status: Status
    outcome: ChildOutcome
    peak_bytes: int | None
    duration_s: float


def run_child(
    request: ChildRequest, folder: Path, *, limited_by: LimitedBy = "none", timeout_s: float
) -> ChildEnd:
    """Runs a request in a process of its own and returns how it ended. Blocks.

    The process is dead when this returns or raises. Request, outcome, log and ids are in `folder`,
    which is made. A process that ran out of memory or time, or failed, is a result. Raises
    `ConfigError` where memory cannot be limited.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OUTCOME_NAME).unlink(missing_ok=True)
    request_path = folder / "request.json"
    group = memory_group(limited_by, group_name(), request.limits.memory_bytes)
    try:
        request = msgspec.structs.replace(request, spawned_us=monotonic_us())
        request_path.write_bytes(msgspec.json.encode(request))
        command = [sys.executable, "-m", f"{__package__}.child", str(request_path)]
        threads = {"OMP_NUM_THREADS": str(request.limits.threads)}
        started_s = time.monotonic()
        with (folder / LOG_NAME).open("wb") as log:
            process = subprocess.Popen(
                group.command(command),
                env={**os.environ, **group.environment(), **threads},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                in_time = False
            else:
                in_time = True
            finally:
                process.kill()
                process.wait()
        duration_s = time.monotonic() - started_s
        if in_time:
            status, outcome = _judge(process.returncode, group, request, folder)
        else:
            error = f"it was not done after {timeout_s:.0f} s; raise --cell-timeout"
            status, outcome = "timed out", ChildOutcome(error=error)
        return ChildEnd(
            status=status, outcome=outcome, peak_bytes=group.peak_bytes(), duration_s=duration_s
        )
    finally:
        group.remove()


def _judge(
    code: int, group: MemoryGroup, request: ChildRequest, folder: Path
) -> tuple[Status, ChildOutcome]:
    path = folder / OUTCOME_NAME
    if code == 0 and path.exists():
        outcome = msgspec.json.decode(path.read_bytes(), type=ChildOutcome)
        if "MemoryError" in outcome.error:
            return "out of memory", outcome
        return ("failed" if outcome.error else "ok"), outcome
    if group.oom_kills():
        limit = request.limits.memory_bytes
        return "out of memory", ChildOutcome(
            error=f"the kernel killed it at its limit of {limit} bytes"
        )
    if code == ENTER_FAILED:
        return "failed", ChildOutcome(error="it could not enter its cgroup", is_bug=True)
    log = (folder / LOG_NAME).read_bytes()[-LOG_SHOWN_BYTES:].decode(errors="replace").strip()
    by = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
    return "failed", ChildOutcome(error=f"it ended with {by}: {log or 'no output'}", is_bug=True)
