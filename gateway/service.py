"""Runs the gateway as a process: keys, the server, signals."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
import uvicorn

from carpool.errors import ConfigError
from carpool.kafka.settings import KafkaSettings
from carpool.telemetry.http import TelemetryServer
from carpool.telemetry.logs import configure_logs
from carpool.telemetry.metrics import Metrics
from carpool.telemetry.settings import HttpSettings, LogSettings
from gateway.app import Gateway
from gateway.guard import Guard
from gateway.keys import (
    KEY_FILE,
    LOCAL_OWNER,
    Keys,
    environment_line,
    key_of,
    local_key,
    read_keys,
)
from gateway.limits import Limits
from gateway.settings import GatewaySettings, is_loopback
from producers import Client
from producers.settings import ClientSettings

log = structlog.get_logger()

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
IDLE_S = 30
"""How long a connection may be open without a request."""
STALLED_S = 10.0
"""How long the event loop may stand still before /healthz says so."""
DRAIN_S = 30
"""How long requests in progress have at SIGTERM."""
HEAD_BYTES_MAX = 32 * 1024


def run_gateway(
    settings: GatewaySettings,
    kafka: KafkaSettings,
    client: ClientSettings,
    http: HttpSettings,
    logs: LogSettings,
    *,
    workflows: tuple[str, ...],
    tell: Callable[[str], None] | None,
) -> None:
    """Serves until SIGTERM or SIGINT. Blocks. Raises `ConfigError`.

    `workflows`: names of programs that a model may name. `tell` prints address and key.
    """
    configure_logs(service="gateway", level=logs.level)
    server = _listening(settings)
    port = server.getsockname()[1]
    base_url = settings.base_url(port)
    if settings.keys_file:
        keys = read_keys(Path(settings.keys_file))
    else:
        keys = Keys([key_of(local_key(KEY_FILE), LOCAL_OWNER)])
    limits, metrics = Limits(client), Metrics()
    opened = Client(kafka=kafka, settings=client)
    gateway = Gateway(opened, workflows, base_url, limits, metrics.gateway)
    pages = TelemetryServer(
        host=http.host,
        port=http.port,
        registry=metrics.registry,
        is_alive=lambda: time.monotonic() - gateway.beat_s < STALLED_S,
        not_ready=gateway.not_ready,
    )
    local = LOCAL_NAMES if is_loopback(settings.host) else (settings.host,)
    app = Guard(
        gateway.app(),
        keys,
        (*local, *settings.hosts),
        limits,
        metrics.gateway,
        body_bytes_max=settings.body_bytes_max,
        requests_max=settings.connections_max,
    )
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=DRAIN_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
    )
    log.info(
        "listening",
        address=base_url,
        bootstrap=kafka.bootstrap,
        prefix=kafka.prefix,
        http_port=pages.port,
    )
    if tell is not None:
        tell(environment_line(settings, port))
    GatewayServer(config).run(sockets=[server])
    pages.close()


class GatewayServer(uvicorn.Server):
    """Ends with 0 at a signal: uvicorn's own would end by the signal, after its clean end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield


def _listening(settings: GatewaySettings) -> socket.socket:
    """Returns the socket. Raises `ConfigError` where the address cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((settings.host, settings.port))
    except OSError as error:
        server.close()
        where = f"{settings.host}:{settings.port}"
        raise ConfigError(f"cannot listen at {where}: {error.strerror} (gateway.port)") from None
    return server
