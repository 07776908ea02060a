"""What every request passes before a route sees it: host, origin, key, size."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carpool.telemetry.gateway_metrics import GatewayMetrics
from gateway.failures import error_body
from gateway.keys import LINK_OWNER, Key, Keys, key_of, new_key
from gateway.limits import Limits
from gateway.settings import GatewaySettings

PASSAGES, SIGNATURE = "/passages/", "signature"
LINK = key_of(new_key(), LINK_OWNER, per_minute=600)
"""Of all signed links together."""
HEAD_BYTES_MAX = 32 * 1024
BODY_S, UPLOAD_S = 30.0, 600.0
"""Longest time from the head of a request to the end of its body; of one with a file."""
FORM_BYTES = 64 * 1024
"""What a form has besides its file, at most."""


class TooLarge(Exception):
    """The body of a request is larger than it may be."""


class TooSlow(TooLarge):
    """The body of a request takes too long."""


class Guard:
    """An ASGI application in front of another one."""

    def __init__(
        self,
        app: ASGIApp,
        settings: GatewaySettings,
        keys: Keys,
        limits: Limits,
        metrics: GatewayMetrics,
    ) -> None:
        self._app = app
        self._keys = keys
        self._limits = limits
        self._metrics = metrics
        self._hosts = settings.names()
        self._bounds = {
            False: (settings.body_bytes_max, BODY_S),
            True: (settings.file_bytes_max + FORM_BYTES, UPLOAD_S),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request, or passes it on with the key in its state."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(status=str(message["status"])).inc()
            await send(message)

        if (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, sent)
            return
        with self._metrics.request_seconds.time():
            await self._app(scope, self._bounded(receive, *self._bounds[_is_upload(scope)]), sent)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if sum(len(name) + len(value) for name, value in headers.raw) > HEAD_BYTES_MAX:
            return _error(431, f"the head has more than {HEAD_BYTES_MAX} bytes")
        if _name(f"//{headers.get('host', '')}") not in self._hosts:
            return _error(421, "Host: this gateway has another name (gateway.hosts)")
        origin = headers.get("origin")
        if origin is not None and _name(origin) not in self._hosts:
            return _error(403, "Origin: pages of other sites may not ask this gateway")
        key = self._keys.find(headers.get("authorization", "")) or self._of_link(scope)
        if key is None:
            return _error(401, "the key is missing or unknown: send `Authorization: Bearer KEY`")
        scope.setdefault("state", {})["key"] = key
        if (over := self._limits.refusal(key, time.time())) is not None:
            why, wait_s = over
            return _error(429, why, kind="rate_limit_error", headers={"retry-after": str(wait_s)})
        length = headers.get("content-length", "0")
        bytes_max, _ = self._bounds[_is_upload(scope)]
        if not length.isdecimal() or int(length) > bytes_max:
            return _error(413, f"the body has {length} bytes, and may have {bytes_max}")
        return None

    def _of_link(self, scope: Scope) -> Key | None:
        """Returns the key of a signed link to a passage; None: it is no such link."""
        path = scope["path"]
        if not path.startswith(PASSAGES):
            return None
        wanted = f"{SIGNATURE}={self._keys.signature(path)}".encode()
        return LINK if hmac.compare_digest(scope["query_string"], wanted) else None

    def _bounded(self, receive: Receive, bytes_max: int, body_s: float) -> Receive:
        """Returns what receives a body; it raises `TooLarge`."""
        left, is_read = bytes_max, False
        until_s = asyncio.get_running_loop().time() + body_s

        async def received() -> Message:
            nonlocal left, is_read
            if is_read:
                return await receive()
            try:
                async with asyncio.timeout_at(until_s):
                    message = await receive()
            except TimeoutError:
                raise TooSlow(f"the body did not come within {body_s:g} s") from None
            left -= len(message.get("body", b""))
            is_read = not message.get("more_body", False)
            if left < 0:
                raise TooLarge(f"the body has more than {bytes_max} bytes")
            return message

        return received


def passage_address(base_url: str, keys: Keys, passage_id: str) -> str:
    """Returns the address of the text of a passage, which needs no key."""
    signature = keys.signature(f"{PASSAGES}{passage_id}")
    return f"{base_url}{PASSAGES}{quote(passage_id, safe='')}?{SIGNATURE}={signature}"


def _is_upload(scope: Scope) -> bool:
    """Returns whether the body is a file, which may be larger than others."""
    return bool(scope["method"] == "POST" and scope["path"] == "/v1/files")


def _name(address: str) -> str:
    """Returns the host name of an address; "" where there is none."""
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


def _error(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    return JSONResponse(error_body(message, kind=kind), status, headers)
