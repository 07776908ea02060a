"""Serves the pages of a process: /healthz (the loop runs), /readyz (it works), /metrics."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import structlog
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)

from carpool.errors import ConfigError

log = structlog.get_logger()


CONNECTIONS_MAX = 16
"""Connections served at the same time; for one more, the oldest is closed."""
REQUEST_TIMEOUT_S = 10.0
"""Longest time from a connection to the end of its reply."""
SLOT_WAIT_S = 0.2
"""How long a new connection waits for the thread of the one that was closed for it."""


class _Server(ThreadingHTTPServer):
    """One thread for each connection, which has one request; their number and time are limited."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._started_s: dict[socket.socket, float] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection on a thread; at the limit, closes the oldest one first."""
        if not self._free.acquire(blocking=False):
            self._cut(count=1)
            if not self._free.acquire(timeout=SLOT_WAIT_S):
                self.shutdown_request(request)
                return
        with self._lock:
            self._started_s[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def service_actions(self) -> None:
        """Closes the connections that took too long; called twice a second."""
        until_s = time.monotonic() - REQUEST_TIMEOUT_S
        with self._lock:
            late = sum(started_s < until_s for started_s in self._started_s.values())
        self._cut(count=late)

    def _cut(self, *, count: int) -> None:
        """Ends the oldest connections; their threads then end by themselves."""
        with self._lock:  # they are in the order of their start
            for request in list(self._started_s)[:count]:
                del self._started_s[request]
                with contextlib.suppress(OSError):  # it is closed already
                    request.shutdown(socket.SHUT_RDWR)

    def _ended(self, request: socket.socket) -> None:
        with self._lock:
            self._started_s.pop(request, None)
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs all errors except a connection that was closed."""
        if not isinstance(sys.exception(), ConnectionError):
            log.exception("a page could not be served")


class TelemetryServer:
    """Serves the three pages on its own thread until `close`."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        registry: CollectorRegistry,
        is_alive: Callable[[], bool],
        not_ready: Callable[[], Sequence[str]],
        notes: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Binds; port 0 takes a free one. Raises `ConfigError` when the port is in use.

        Serves at most `CONNECTIONS_MAX` connections at a time, each for `REQUEST_TIMEOUT_S`.
        `/metrics` has `registry`, and `process_*`: memory, CPU, start and open files.
        """
        try:
            self._server = _Server((host, port), _pages(registry, is_alive, not_ready, notes))
        except OSError as error:
            raise ConfigError(
                f"cannot serve /healthz at {host}:{port}: {error.strerror}; is another service "
                "there? Set http.port"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="telemetry", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops serving and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2)


def _pages(
    registry: CollectorRegistry,
    is_alive: Callable[[], bool],
    not_ready: Callable[[], Sequence[str]],
    notes: Callable[[], Sequence[str]],
) -> type[BaseHTTPRequestHandler]:
    """Returns the handler of requests for the pages."""
    process = CollectorRegistry()
    ProcessCollector(registry=process)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                page = generate_latest(registry) + generate_latest(process)
                self._reply(200, page, CONTENT_TYPE_LATEST)
            elif path == "/healthz":
                alive = is_alive()
                self._reply(200 if alive else 503, orjson.dumps({"alive": alive}))
            elif path == "/readyz":
                reasons = list(not_ready())
                report = {"ready": not reasons, "missing": reasons, "notes": list(notes())}
                self._reply(503 if reasons else 200, orjson.dumps(report))
            else:
                self._reply(404, orjson.dumps({"pages": ["/healthz", "/readyz", "/metrics"]}))

        def do_HEAD(self) -> None:
            self.do_GET()

        def _reply(self, status: int, body: bytes, content_type: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Does not log scrapes."""

    return Handler
