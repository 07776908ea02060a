"""One child process of `carpool up`: its process group, its log file, its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from carpool.guard import GuardedProcess

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
            os.kill(
                self.pid, signal.SIGTERM
            )  # not Popen.send_signal: it would reap behind `has_ended`

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
