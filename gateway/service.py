"""Runs the gateway as a process: keys, the server, signals."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event

import structlog
import uvicorn
from sse_starlette.sse import AppStatus

from carpool.clock import SystemClock
from carpool.errors import ConfigError, DeploymentError
from carpool.kafka.settings import KafkaSettings
from carpool.telemetry.http import TelemetryServer
from carpool.telemetry.logs import configure_logs
from carpool.telemetry.metrics import Metrics
from carpool.telemetry.settings import HttpSettings, LogSettings
from gateway.app import Gateway
from gateway.batch_job import BatchParts
from gateway.connections import HEAD_S, bounded
from gateway.file_routes import FileRoutes
from gateway.files import Files
from gateway.guard import HEAD_BYTES_MAX, Guard, passage_address
from gateway.keys import Keys, environment_line, keys_of
from gateway.ledger import Ledger
from gateway.limits import Limits
from gateway.plan.objects import AddressOf
from gateway.settings import GatewaySettings
from producers import Client
from producers.openai.questions import MODEL
from producers.settings import ClientSettings

log = structlog.get_logger()

STALLED_S = 10.0
"""How long the event loop may stand still before /healthz says so."""
DRAIN_S = 30
"""How long requests in progress have at SIGTERM."""


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
    metrics, limits = Metrics(), Limits(client)
    opened = Client(kafka=kafka, settings=client)
    keys = keys_of(settings, has_prices=bool(client.price_in or client.price_out))
    address_of = partial(passage_address, base_url, keys)
    models = (MODEL, *(f"{MODEL}/{name}" for name in workflows))
    files = FileRoutes(_parts(kafka, client, keys, limits, address_of), models)
    gateway = Gateway(opened, models, address_of, limits, metrics.gateway, files)
    has_begun = Event()
    pages = TelemetryServer(
        host=http.host,
        port=http.port,
        registry=metrics.registry,
        is_alive=lambda: time.monotonic() - gateway.beat_s < STALLED_S,
        not_ready=lambda: gateway.not_ready() if has_begun.is_set() else ("it begins to serve",),
    )
    app = Guard(gateway.app(), settings, keys, limits, metrics.gateway)
    log.info("listening", address=base_url, bootstrap=kafka.bootstrap, http_port=pages.port)

    def ready() -> None:
        has_begun.set()
        if tell is not None:
            tell(environment_line(settings, port))

    AppStatus.enable_automatic_graceful_drain = False  # streams in progress may end, too
    try:
        GatewayServer(_config(settings, app), ready).run(sockets=[server])
    except SystemExit:  # so the server ends where the client cannot connect
        raise gateway.failure or DeploymentError("the server did not start; see its log") from None
    finally:
        pages.close()


def _parts(
    kafka: KafkaSettings, client: ClientSettings, keys: Keys, limits: Limits, address_of: AddressOf
) -> BatchParts:
    def spent(owner: str, cost: float) -> bool:
        """Charges the first key of an owner; without one, its batches do not run here."""
        key = keys.first_of(owner)
        return key is not None and limits.charge(key, cost, time.time())

    clock = SystemClock()
    ledger = Ledger(kafka, client, clock)
    return BatchParts(
        kafka=kafka,
        client=client,
        clock=clock,
        ledger=ledger,
        files=Files(kafka, ledger, clock),
        address_of=address_of,
        spent=spent,
    )


def _config(settings: GatewaySettings, app: Guard) -> uvicorn.Config:
    tls = None
    if settings.tls_cert:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(settings.tls_cert, settings.tls_key)
        except OSError as error:
            raise ConfigError(f"gateway.tls_cert or gateway.tls_key: {error}") from None
    return uvicorn.Config(
        app,
        http=bounded(settings.connections_max, tls),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_keep_alive=int(2 * HEAD_S),  # `BoundedProtocol` ends them earlier
        timeout_graceful_shutdown=DRAIN_S,
        h11_max_incomplete_event_size=2 * HEAD_BYTES_MAX,
    )


class GatewayServer(uvicorn.Server):
    """Ends with 0 at a signal: uvicorn's own would end by the signal, after its clean end.

    `ready` is called when it listens.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

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
