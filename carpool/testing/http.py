"""A minimal HTTP/1.1 server for stand-ins: small requests, JSON, event streams, broken replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec

BODY_BYTES_MAX = 16 * 1024 * 1024


class RefusedRequest(Exception):
    """Ends a request with a status and an error object of OpenAI's API."""

    def __init__(self, status: int, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A request. Names of headers are in lower case; `path` is without its query string."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Responder:
    """Writes one response. Every call raises `ConnectionError` after the client disconnects."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._watch: asyncio.Task[bytes] | None = None
        self.has_begun = False

    async def wait(self, seconds: float | None) -> None:
        """Sleeps (None: forever), or raises when the client disconnects."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._reader.read(1))
        done, _ = await asyncio.wait({self._watch}, timeout=seconds)
        if done:
            raise ConnectionResetError(
                "the client left, or sent a request before this one was answered"
            )

    async def json(self, value: Any, status: int = 200, retry_after_s: float | None = None) -> None:
        """Writes a whole response."""
        headers = {"Content-Type": "application/json"}
        if retry_after_s is not None:
            headers["Retry-After"] = f"{retry_after_s:g}"
        await self._whole(msgspec.json.encode(value), status, headers)

    async def text(self, value: str, content_type: str = "text/plain") -> None:
        """Writes a whole response of text."""
        await self._whole(value.encode(), 200, {"Content-Type": f"{content_type}; charset=utf-8"})

    async def event(self, value: Any) -> None:
        """Writes one server-sent event; the first begins the response."""
        await self.raw_event(msgspec.json.encode(value).decode())

    async def raw_event(self, text: str) -> None:
        """Writes an event with any `text`."""
        if not self.has_begun:
            self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        data = f"data: {text}\n\n".encode()
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def end_events(self) -> None:
        """Ends a stream of events, as OpenAI's API does."""
        await self.raw_event("[DONE]")
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def reset(self) -> None:
        """Aborts the connection."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Stops watching the client. The connection stays open."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})  # the next request is read by another task

    async def _whole(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self._head(status, {**headers, "Content-Length": str(len(body))})
        self._writer.write(body)
        await self._writer.drain()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.has_begun = True
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())


Handler = Callable[[HttpRequest, Responder], Awaitable[None]]


async def serve_connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler
) -> None:
    """Answers the requests of one connection until the client or the handler ends it."""
    try:
        while (request := await _read(reader)) is not None:
            responder = Responder(reader, writer)
            try:
                await handler(request, responder)
            except RefusedRequest as error:
                body = {"error": {"message": str(error), "type": "stand_in", "code": error.status}}
                await responder.json(body, error.status, error.retry_after_s)
            finally:
                await responder.close()
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        pass  # the client disconnected, or does not speak HTTP
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> HttpRequest | None:
    """Returns the next request, None at the end. `ValueError`: not HTTP, or too large."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {}
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    if length > BODY_BYTES_MAX:
        raise ValueError(f"a body of {length} bytes is more than {BODY_BYTES_MAX}")
    return HttpRequest(
        method=method,
        path=target.partition("?")[0],
        headers=headers,
        body=await reader.readexactly(length),
    )
