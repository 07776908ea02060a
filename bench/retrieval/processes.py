"""Starts the process of a contestant in its cgroup, waits for it, and judges how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from bench.retrieval.cgroup import (
    ENTER_FAILED,
    GroupCounters,
    LimitedBy,
    group_name,
    memory_group,
)
from bench.retrieval.child import OUTCOME_NAME, PROGRESS_NAME, ChildOutcome, ChildRequest
from bench.retrieval.measure import monotonic_us

POLL_S = 0.1
LOG_NAME = "log"
LOG_SHOWN_BYTES = 600

Status = Literal["ok", "out of memory", "timed out", "failed"]


class ChildEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended."""

    status: Status
    outcome: ChildOutcome
    group: GroupCounters
    duration_s: float


def run_child(
    request: ChildRequest,
    folder: Path,
    *,
    limited_by: LimitedBy = "none",
    timeout_s: float,
    on_progress: Callable[[int], None] = lambda _: None,
) -> ChildEnd:
    """Runs a request in a process of its own and returns how it ended. Blocks.

    The process is dead when this returns or raises. Request, outcome, log and ids are in `folder`,
    which is made. A process that ran out of memory or time, or failed, is a result. Raises
    `ConfigError` where memory cannot be limited.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OUTCOME_NAME).unlink(missing_ok=True)
    (folder / PROGRESS_NAME).unlink(missing_ok=True)
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
                in_time = _wait(process, folder, started_s + timeout_s, on_progress)
            finally:
                process.kill()
                process.wait()
        duration_s = time.monotonic() - started_s
        counters = group.counters()
    finally:
        group.remove()
    status, outcome = _judge(process.returncode, in_time, counters, folder, timeout_s)
    return ChildEnd(status=status, outcome=outcome, group=counters, duration_s=duration_s)


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    deadline_s: float,
    on_progress: Callable[[int], None],
) -> bool:
    """Whether the process ended in time."""
    progress = folder / PROGRESS_NAME
    while True:
        try:
            process.wait(timeout=max(0.0, min(POLL_S, deadline_s - time.monotonic())))
            return True
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline_s:
                return False
        try:
            on_progress(int(progress.read_text() or 0))
        except (OSError, ValueError):
            continue  # not written yet


def _judge(
    code: int, in_time: bool, group: GroupCounters, folder: Path, timeout_s: float
) -> tuple[Status, ChildOutcome]:
    path = folder / OUTCOME_NAME
    if not in_time:
        return "timed out", ChildOutcome(
            error=f"it was not done after {timeout_s:.0f} s; raise --cell-timeout"
        )
    if code == 0 and path.exists():
        outcome = msgspec.json.decode(path.read_bytes(), type=ChildOutcome)
        if "MemoryError" in outcome.error:
            return "out of memory", outcome
        return ("failed" if outcome.error else "ok"), outcome
    if group.oom_kills:
        return "out of memory", ChildOutcome(
            error=f"the kernel killed it at its limit of {group.limit_bytes} bytes"
        )
    if code == ENTER_FAILED:
        return "failed", ChildOutcome(error="it could not enter its cgroup", is_bug=True)
    log = (folder / LOG_NAME).read_bytes()[-LOG_SHOWN_BYTES:].decode(errors="replace").strip()
    by = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
    return "failed", ChildOutcome(error=f"it ended with {by}: {log or 'no output'}", is_bug=True)
