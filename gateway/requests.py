"""Reads a request: its body, its id, whether its client is still there."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Coroutine
from typing import Any

import orjson
from starlette.requests import Request

from gateway.failures import NoAnswer
from gateway.keys import Key, digest_of
from producers.openai.fields import BadRequest
from schemas.answer import Answer

IDEMPOTENCY = "idempotency-key"


def parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is no JSON: {error}") from None


def query_id_of(request: Request) -> str:
    """Returns the id of the question: the same for the same idempotency key of an owner."""
    if not (idempotency := request.headers.get(IDEMPOTENCY)):
        return str(uuid.uuid4())
    key: Key = request.state.key
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{key.owner}\n{request.url.path}\n{idempotency}"))


def digest_of_request(request: Request, body: bytes) -> str:
    idempotency = request.headers.get(IDEMPOTENCY, "")
    return digest_of(f"{request.url.path}\n{idempotency}\n{hashlib.sha256(body).hexdigest()}")


async def while_there(request: Request, asked: Coroutine[Any, Any, Answer]) -> Answer:
    """Returns what `asked` returns; cancels it when the client of the request goes away."""
    task, gone = asyncio.create_task(asked), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise NoAnswer(499, "the client is gone", retryable=False)
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
