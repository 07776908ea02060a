"""A gateway that `open_session` starts, and requests to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from bench.core.stack import LOOPBACK
from carpool.errors import CarpoolError
from carpool.kafka.embedded import free_port
from gateway.keys import KEY_FILE, local_key


class GatewayAddress:
    """A free port, and the key of this machine. `settings`: the gateway's environment variables."""

    def __init__(self) -> None:
        self._port = free_port()
        self.settings = {"CARPOOL_GATEWAY_PORT": str(self._port)}

    def client(self) -> aiohttp.ClientSession:
        """Returns a client without a limit of connections."""
        own = {"Authorization": f"Bearer {local_key(KEY_FILE)}"}
        return aiohttp.ClientSession(
            f"http://{LOOPBACK}:{self._port}",
            headers={**own, "Accept": "application/json, text/event-stream"},
            connector=aiohttp.TCPConnector(limit=0),
        )


async def lines(http: aiohttp.ClientSession, path: str, body: Any) -> AsyncIterator[bytes]:
    """Yields each line of a reply. Raises `CarpoolError` where the request is refused."""
    async with http.post(path, json=body) as reply:
        if reply.status != 200:
            raise CarpoolError(f"{path} replied {reply.status}: {await reply.text()}")
        async for line in reply.content:
            yield line


async def post(http: aiohttp.ClientSession, path: str, body: Any) -> Any:
    """Returns the JSON of a reply. Raises as `lines`."""
    return msgspec.json.decode(b"".join([line async for line in lines(http, path, body)]))
