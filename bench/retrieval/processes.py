"""Starting the process of a contestant inside its cgroup, waiting for it, and saying what became of
it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.retrieval.arrivals import monotonic_us
from bench.retrieval.cells import Status, writing
from bench.retrieval.cgroup import ENTER_FAILED, HeldBy, MemoryHeld, group_name, memory_holder
from bench.retrieval.child import OUTCOME_NAME, PROGRESS_NAME, Outcome, Request, encode_request

POLL_S = 0.1
LOG_NAME = "log"
LOG_SHOWN_BYTES = 600


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended."""

    status: Status
    outcome: Outcome
    held: MemoryHeld
    duration_s: float


def run_child(
    request: Request,
    folder: Path,
    *,
    held_by: HeldBy,
    limit_bytes: int | None,
    timeout_s: float,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Ended:
    """Runs a request in a process of its own and returns how it ended. Blocks; the process is dead
    when this returns or raises.

    `folder` is made; request, outcome, log and ids lie in it afterwards. A process that the kernel
    killed for want of memory, that failed or took too long is an answer, not an error. Raises
    `ConfigError` where memory cannot be held, or `folder` cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    (folder / OUTCOME_NAME).unlink(missing_ok=True)
    (folder / PROGRESS_NAME).unlink(missing_ok=True)
    request_path = folder / "request.json"
    holder = memory_holder(held_by, group_name(), limit_bytes)
    try:
        with writing(request_path):
            request_path.write_bytes(
                encode_request(msgspec.structs.replace(request, spawned_us=monotonic_us()))
            )
        command = holder.command([sys.executable, "-m", f"{__package__}.child", str(request_path)])
        environment = {
            **os.environ,
            **holder.environment(),
            "OMP_NUM_THREADS": str(request.limits.threads),
        }
        started_s = time.monotonic()
        with (folder / LOG_NAME).open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            try:
                in_time = _wait(process, folder, started_s + timeout_s, on_progress)
            finally:
                process.kill()
                process.wait()
        duration_s = time.monotonic() - started_s
        held = holder.seen()
    finally:
        holder.remove()
    status, outcome = _judge(process.returncode, in_time, held, folder, timeout_s)
    return Ended(status=status, outcome=outcome, held=held, duration_s=duration_s)


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    deadline_s: float,
    on_progress: Callable[[int], None],
) -> bool:
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
    code: int, in_time: bool, held: MemoryHeld, folder: Path, timeout_s: float
) -> tuple[Status, Outcome]:
    path = folder / OUTCOME_NAME
    if not in_time:
        return "timed out", Outcome(
            error=f"it was not done after {timeout_s:.0f} s; --cell-timeout gives more"
        )
    if code == 0 and path.exists():
        outcome = msgspec.json.decode(path.read_bytes(), type=Outcome)
        if "MemoryError" in outcome.error:
            return "out of memory", outcome
        return ("failed" if outcome.error else "ok"), outcome
    if held.oom_kills:
        return "out of memory", Outcome(
            error=f"the kernel killed it at its limit of {held.limit_bytes} bytes"
        )
    if code == ENTER_FAILED:
        return "failed", Outcome(error="it could not enter its cgroup", is_bug=True)
    log = (folder / LOG_NAME).read_bytes()[-LOG_SHOWN_BYTES:].decode(errors="replace").strip()
    by = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
    return "failed", Outcome(error=f"it ended with {by}: {log or 'it said nothing'}", is_bug=True)
