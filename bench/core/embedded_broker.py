"""The embedded broker as a child process of a benchmark or a test."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

from carpool.errors import ConfigError
from carpool.guard import GuardedProcess
from carpool.kafka.embedded import broker_command, broker_environment, free_port


class EmbeddedBroker:
    """A broker as a child process on loopback. A context manager that stops it."""

    def __init__(self, *, log_file: Path | None = None) -> None:
        """Chooses a free port. Starts nothing."""
        self.port = free_port()
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self, timeout_s: float = 10.0) -> None:
        """Starts the broker and waits for connections. Raises `ConfigError` with the reason."""
        if _answers(self.port):
            raise ConfigError(
                f"port {self.port} is in use, so the embedded broker cannot use it; choose another "
                "port"
            )
        output = self._log_file.open("ab") if self._log_file else subprocess.DEVNULL
        try:
            self._process = GuardedProcess[bytes](
                broker_command(self.port),
                env=broker_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        finally:
            if not isinstance(output, int):
                output.close()
        deadline = time.monotonic() + timeout_s
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                where = f"; see {self._log_file}" if self._log_file else ""
                raise ConfigError(f"the embedded broker did not start on port {self.port}{where}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stops the broker; its records are lost."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if self._process is not None:
            self._process.wait()
        self._process = None

    def __enter__(self) -> EmbeddedBroker:
        """Starts it."""
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stops it."""
        self.stop()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5):
            return True
    except OSError:
        return False
