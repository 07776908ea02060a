"""Starts the children of `carpool up`, keeps them running, and ends them in order.

Everything runs on the calling thread. A signal only increments a counter, which every wait checks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal, Self

from carpool.errors import CarpoolError, ConfigError
from carpool.guard import GuardedProcess
from cli.exit_codes import CHANGE_NEEDED

STOP_TIMEOUT_S = 35.0
"""How long a part may take to end before it is killed; unfinished work is done again."""
RESTARTS_MAX = 5
"""How often a part that ends by itself is restarted before everything is ended."""
RESTART_DELAY_S = 0.5
"""Before the first restart; doubled for each more."""
RESTART_DELAY_S_MAX = 30.0
LOG_BYTES_MAX = 64 << 20
"""A larger log of a part replaces that of NAME.log.1."""
QUIET_S = 60.0
"""Time ready after which earlier restarts are forgotten."""
TURN_S = 0.05

State = Literal["starting", "ready", "restarting", "stopping", "ended"]


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: end everything in order."""


@dataclass(kw_only=True)
class Part:
    """A spec with its process. `child` None: it is restarted at `restart_at_s`.

    `missing`: why it is not ready yet. Only the supervisor changes it.
    """

    spec: ChildSpec
    child: Child | None
    started_s: float
    state: State = "starting"
    missing: str = ""
    was_ready: bool = False
    ready_s: float | None = None
    restarts: int = 0
    restart_at_s: float = 0.0
    log_bytes: int = 0
    grew_s: float = 0.0

    @property
    def since_s(self) -> float:
        """Returns how long it took to be ready, or the time since its start while it is not."""
        return (time.monotonic() if self.ready_s is None else self.ready_s) - self.started_s


def restart_delay_s(restarts: int) -> float | None:
    """Returns the pause before the next restart, doubled each time; None: no more restarts."""
    if restarts >= RESTARTS_MAX:
        return None
    return min(RESTART_DELAY_S * 2.0**restarts, RESTART_DELAY_S_MAX)


class Supervisor:
    """Starts children, waits until they are ready, restarts them, and ends them in order.

    A context manager: after it, no child is left. It handles SIGINT and SIGTERM: the first signal
    raises `Interrupted` from the waiting methods, the second kills everything.
    """

    def __init__(self, ready_timeout_s: float, *, note: Callable[[str], None]) -> None:
        """`note` gets a line for people for each restart."""
        self._ready_timeout_s = ready_timeout_s
        self._note = note
        self._parts: dict[str, Part] = {}
        self.signals = 0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Begins to handle SIGINT and SIGTERM."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._previous[number] = signal.signal(number, self._count)
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the children in order, and restores the signal handlers."""
        try:
            self.stop()
        finally:
            for number, handler in self._previous.items():
                signal.signal(number, handler)  # type: ignore[arg-type]

    def start(self, spec: ChildSpec) -> None:
        """Starts a child. Raises `ConfigError` when its command cannot be run."""
        assert spec.name not in self._parts, f"{spec.name} runs already"
        if spec.log_file.exists():  # the log and its tail are of this run
            spec.log_file.replace(older_log(spec.log_file))
        self._parts[spec.name] = Part(
            spec=spec, child=self._spawn(spec), started_s=time.monotonic()
        )

    def parts(self) -> tuple[Part, ...]:
        """Returns every child as it is now."""
        return tuple(self._parts.values())

    def wait_ready(self, show: Callable[[], None] = lambda: None) -> None:
        """Waits until every child is ready; `show` is called in between.

        Raises `Interrupted`; `CarpoolError` with the end of its log when a child ends before it was
        ready once, or takes longer than `up.ready_timeout_s`: a patient one, after its last line.
        """
        while True:
            self.step()
            waiting = [part for part in self._parts.values() if part.state != "ready"]
            for part in waiting:
                self._probe(part)
            show()
            if not waiting:
                return
            limit_s = time.monotonic() - self._ready_timeout_s
            for part in waiting:
                if max(part.started_s, part.grew_s) < limit_s:
                    raise CarpoolError(
                        f"{part.spec.name} is not ready after {self._ready_timeout_s:g} s: "
                        f"{part.missing}. See {part.spec.log_file}; on a slow machine raise "
                        "up.ready_timeout_s."
                    )
            self.sleep(TURN_S)

    def watch(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Keeps the children running until `is_over`. Raises `Interrupted`, and `CarpoolError` when
        a child was restarted too often.
        """
        while not is_over():
            self.step()
            for part in self._parts.values():
                if part.state != "ready":
                    self._probe(part)
            self.sleep(4 * TURN_S)

    def step(self) -> None:
        """Notes children that ended, and restarts them when due. Raises as `watch` does."""
        if self.signals:
            raise Interrupted
        now_s = time.monotonic()
        for part in self._parts.values():
            if part.child is None:
                if now_s >= part.restart_at_s:
                    part.child, part.state = self._spawn(part.spec), "starting"
                continue
            part.child.rotate_log(LOG_BYTES_MAX)
            if part.child.has_ended():
                self._ended(part, part.child, now_s)
            elif part.ready_s is not None and now_s - part.ready_s > QUIET_S:
                part.restarts = 0

    def stop(self, order: Sequence[str] = ()) -> None:
        """Ends the children of `order` one after the other, then the others, last started first."""
        left = [name for name in reversed(self._parts) if name not in order]
        patience = self.signals
        for name in (*order, *left):
            part = self._parts.get(name)
            if part is None or part.state == "ended":
                continue
            part.state = "stopping"
            if part.child is not None:
                self._end(part.child, patience)
            part.child, part.state = None, "ended"

    def sleep(self, duration_s: float) -> None:
        """Sleeps until the time has passed or a signal comes. Raises `Interrupted`."""
        time.sleep(duration_s)
        if self.signals:
            raise Interrupted

    def _end(self, child: Child, patience: int) -> None:
        child.ask_to_end()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while not child.has_ended():
            if self.signals > max(patience, 1):
                child.kill()
            elif time.monotonic() > deadline_s:
                self._note(
                    f"{child.spec.name} did not end within {STOP_TIMEOUT_S:g} s and is killed"
                )
                child.kill()
            time.sleep(TURN_S / 2)

    def _spawn(self, spec: ChildSpec) -> Child:
        try:
            return Child(spec)
        except OSError as error:
            raise ConfigError(
                f"cannot start {spec.name} ({spec.command[0]}): {error.strerror}"
            ) from error

    def _probe(self, part: Part) -> None:
        if part.child is None:
            return
        part.missing = part.spec.probe()
        if part.spec.is_patient:
            with suppress(OSError):  # somebody removed it
                log_bytes = part.spec.log_file.stat().st_size
                if log_bytes != part.log_bytes:
                    part.log_bytes, part.grew_s = log_bytes, time.monotonic()
        if not part.missing:
            part.state, part.was_ready = "ready", True
            part.ready_s = time.monotonic()
            if part.restarts:
                self._note(f"{part.spec.name} is ready again")

    def _ended(self, part: Part, child: Child, now_s: float) -> None:
        spec, status = part.spec, child.exit_status
        how = (
            f"ended by signal {-status}"
            if status is not None and status < 0
            else f"ended with status {status}"
        )
        tail = f" Its log ends:\n{child.log_tail()}" if child.log_tail() else ""
        if not part.was_ready:
            kind = ConfigError if status == CHANGE_NEEDED else CarpoolError
            raise kind(f"{spec.name} {how} before it was ready; see {spec.log_file}.{tail}")
        if not spec.is_restarted:
            raise CarpoolError(
                f"{spec.name} {how}, and its records are lost: everything is stopped. See "
                f"{spec.log_file}.{tail}"
            )
        delay_s = restart_delay_s(part.restarts)
        if delay_s is None:
            raise CarpoolError(
                f"{spec.name} {how} once more, after {part.restarts} restarts: it is not restarted "
                f"again. See {spec.log_file}.{tail}"
            )
        self._note(f"{spec.name} {how}; started again in {delay_s:g} s (see {spec.log_file})")
        part.child, part.state, part.ready_s = None, "restarting", None
        part.restarts += 1
        part.restart_at_s, part.started_s = now_s + delay_s, now_s

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1


LOG_TAIL_LINES = 12

Probe = Callable[[], str]
"""Asks a child whether it is ready: empty when it is, else what is missing, in words. May block for
a second.
"""


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """What to run, and how to find out that it is ready. `is_restarted` False: its end ends
    everything. `is_patient`: it may be not ready for as long as its log grows.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(repr=False)
    log_file: Path
    probe: Probe
    address: str = ""
    is_restarted: bool = True
    is_patient: bool = False


def older_log(log_file: Path) -> Path:
    """Returns where the log of the run before, or the earlier part of a long one, is kept."""
    return log_file.with_name(log_file.name + ".1")


class Child:
    """A running process of a spec. Not thread-safe."""

    def __init__(self, spec: ChildSpec) -> None:
        """Starts the process. Raises `OSError` when the command cannot be run."""
        self.spec = spec
        self.exit_status: int | None = None
        spec.log_file.parent.mkdir(parents=True, exist_ok=True)
        with spec.log_file.open("ab") as log:
            # a Ctrl-C on the terminal reaches `carpool up` alone, which ends them in order
            self._process = GuardedProcess[bytes](
                list(spec.command),
                env=dict(spec.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """The process id, and the id of its group."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Returns whether the process has ended; if so, ends the rest of its process group."""
        if self.exit_status is not None:
            return True
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        # Before it is reaped: until then the number of its group cannot be reused.
        self._signal_group(signal.SIGKILL)
        self.exit_status = self._process.wait()
        return True

    def ask_to_end(self) -> None:
        """Sends SIGTERM to the process, not to its process group."""
        if not self.has_ended():
            # not Popen.send_signal: it would reap behind `has_ended`
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process group, and waits for the process."""
        if self.exit_status is None:
            self._signal_group(signal.SIGKILL)
            self.exit_status = self._process.wait()

    def rotate_log(self, size_bytes_max: int) -> None:
        """Moves the content of a log that is larger to NAME.log.1; the process writes on."""
        log_file = self.spec.log_file
        with contextlib.suppress(OSError):  # a full disk: the log stays as it is
            if log_file.stat().st_size > size_bytes_max:
                shutil.copyfile(log_file, older_log(log_file))
                os.truncate(log_file, 0)  # the process appends, so it continues at the beginning

    def log_tail(self) -> str:
        """Returns the last lines of its output."""
        try:
            lines = self.spec.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
