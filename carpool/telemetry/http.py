"""Serves the pages of a process: /healthz (the loop runs), /readyz (it works), /metrics."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
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
JSON = "application/json"
Page = tuple[HTTPStatus, bytes, str]
"""Status, content and type of the content."""


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
        self._registry, self._process = registry, CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._is_alive, self._not_ready, self._notes = is_alive, not_ready, notes
        try:
            listener = socket.create_server((host, port), backlog=128)
        except OSError as error:
            raise ConfigError(
                f"cannot serve /healthz at {host}:{port}: {error.strerror}; is another service "
                "there? Set http.port"
            ) from error
        self.port: int = listener.getsockname()[1]
        self._connections: dict[asyncio.Task[None], None] = {}  # in the order of their start
        self._loop, self._stopping = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="telemetry", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops serving and frees the port."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=2)

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen(listener))

    async def _listen(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._serve, sock=listener)
        await self._stopping.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection, which has one request; at the limit, closes the oldest one first."""
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        writer.transport.set_write_buffer_limits(high=0)  # `drain` waits until all is sent
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = request.split(" ", 2)
                status, body, content_type = self._page(path.partition("?")[0])
                head = (
                    f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + (b"" if method == "HEAD" else body))
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # the client closed its connection, is slow, or does not speak HTTP
        except Exception:
            log.exception("a page could not be served")
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    def _page(self, path: str) -> Page:
        if path == "/metrics":
            page = generate_latest(self._registry) + generate_latest(self._process)
            return HTTPStatus.OK, page, CONTENT_TYPE_LATEST
        if path == "/healthz":
            is_alive = self._is_alive()
            return _answer(is_alive, {"alive": is_alive})
        if path == "/readyz":
            missing, notes = list(self._not_ready()), list(self._notes())
            report = {"ready": not missing, "missing": missing, "notes": notes}
            return _answer(not missing, report)
        pages = {"pages": ["/healthz", "/readyz", "/metrics"]}
        return HTTPStatus.NOT_FOUND, orjson.dumps(pages), JSON


def _answer(is_good: bool, report: Any) -> Page:
    status = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
    return status, orjson.dumps(report), JSON
