"""Requests and replies of the LLM stand-in: JSON, errors of OpenAI's API, event streams."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, TypeVar

import msgspec
from aiohttp import web
from multidict import CIMultiDictProxy

from carpool.testing.llm_api import LlmFault
from carpool.testing.llm_text import NAME

T = TypeVar("T")


class LastRequest(NamedTuple):
    """A request for a completion."""

    path: str
    headers: CIMultiDictProxy[str]
    body: bytes


class RefusedRequest(web.HTTPException):
    """Ends a request with a status and an error object of OpenAI's API."""

    def __init__(self, status: int, message: str, *, retry_after_s: float | None = None) -> None:
        self.status_code = status
        error = {"message": message, "type": "stand_in", "code": status}
        super().__init__(
            text=msgspec.json.encode({"error": error}).decode(),
            content_type="application/json",
            headers={} if retry_after_s is None else {"Retry-After": f"{retry_after_s:g}"},
        )


class EventStream(web.StreamResponse):
    """A response of server-sent events. The first one begins it."""

    def __init__(self, request: web.Request) -> None:
        super().__init__(headers={"Content-Type": "text/event-stream"})
        self._asked_by = request

    async def event(self, event: Any) -> None:
        """Writes a text as it is, and any other event as JSON."""
        if not self.prepared:
            await self.prepare(self._asked_by)
        text = event if isinstance(event, str) else msgspec.json.encode(event).decode()
        await self.write(f"data: {text}\n\n".encode())

    async def fail(self, fault: LlmFault) -> None:
        """Does what the fault says. For `hang` and `reset` it ends when the client has left."""
        if fault.mode not in ("hang", "reset"):
            return await self.event(f"<html>{NAME} writes what is no event</html>")
        if fault.mode == "reset" and self._asked_by.transport is not None:
            self._asked_by.transport.abort()
        await asyncio.Event().wait()


def json_response(value: Any) -> web.Response:
    """Returns the response with this value."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def decoded(body: bytes, kind: type[T]) -> T:
    """Returns the JSON of a request. Raises `RefusedRequest` where it is another one."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise RefusedRequest(400, f"the body is no {kind.__name__}: {error}") from error
