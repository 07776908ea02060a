"""Serves the pages of a process: /healthz (the loop runs), /readyz (it works), /metrics."""

from __future__ import annotations

import sys
import threading
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


class _Server(ThreadingHTTPServer):
    """One thread for each request."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs all errors except a connection closed by the client."""
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
    ) -> None:
        """Binds; port 0 takes a free one. Raises `ConfigError` when the port is in use.

        `/metrics` has `registry`, and `process_*`: memory, CPU, start and open files.
        """
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
                    self._reply(
                        503 if reasons else 200,
                        orjson.dumps({"ready": not reasons, "missing": reasons}),
                    )
                else:
                    self._reply(404, orjson.dumps({"pages": ["/healthz", "/readyz", "/metrics"]}))

            def _reply(
                self, status: int, body: bytes, content_type: str = "application/json"
            ) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Does not log scrapes."""

        try:
            self._server = _Server((host, port), Handler)
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
