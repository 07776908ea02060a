"""A member of `carpool bench torn`, a process: copies a topic exactly once, until it is killed.

It imports its modules, says so on standard output, and joins its group when a line comes on
standard input. So what is measured is the group, and not the start of an interpreter.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import structlog

from bench.core.copy_loop import copy_loop
from carpool.kafka.settings import KafkaSettings
from carpool.terminal import print_plain

GROUP = "torn-copy"
NAME = "copier"
SOURCE = "torn"
IN_FLIGHT = 50


class Members:
    """One member at a time, and the next one, which has imported its modules already."""

    def __init__(self, bootstrap: str, log_file: Path) -> None:
        """The log of all members is appended to `log_file`."""
        self._bootstrap, self._log_file = bootstrap, log_file
        self._now = self._next = self._prepare()

    def _prepare(self) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", __name__, self._bootstrap)
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def start(self) -> None:
        """Lets the next member join the group, and prepares the one after it."""
        self._now = self._next
        assert self._now.stdin is not None and self._now.stdout is not None
        self._now.stdout.readline()
        self._now.stdin.write(b"\n")
        self._now.stdin.flush()
        self._next = self._prepare()

    @property
    def pid(self) -> int:
        """The process id of the member."""
        return self._now.pid

    def kill(self) -> None:
        """Ends the member as a crash does."""
        _end(self._now)

    @property
    def has_ended(self) -> bool:
        """Whether the member ended by itself."""
        return self._now.poll() is not None

    def close(self) -> None:
        """Ends all."""
        _end(self._now)
        _end(self._next)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    if process.stdout is not None and not process.stdout.closed:
        process.communicate()  # waits, and closes the pipes


def main(bootstrap: str) -> None:
    """Waits for a line, then copies for ever."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    settings = KafkaSettings(bootstrap=bootstrap, instance_id=NAME)
    copying = copy_loop(settings, group=GROUP, source=SOURCE, in_flight=IN_FLIGHT)
    print_plain("ready")
    sys.stdin.readline()
    copying.run(drain_us=0)


if __name__ == "__main__":
    main(sys.argv[1])
