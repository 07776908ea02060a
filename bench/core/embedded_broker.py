"""The embedded broker as a child process of a benchmark or a test."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from bench.core.stack import LOOPBACK, ServiceProcess
from carpool.kafka.embedded import broker_command, broker_environment, free_port


class EmbeddedBroker(ServiceProcess):
    """A broker on a free port of loopback; its records are lost when it stops."""

    def __init__(self, log_file: Path = Path(os.devnull)) -> None:
        port = free_port()
        super().__init__(
            broker_command(port), environ=broker_environment(), log_file=log_file, port=port
        )

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"{LOOPBACK}:{self.port}"

    def is_up(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self.port), 0.5).close()
        except OSError:
            return False
        return True
