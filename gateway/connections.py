"""Bounds connections: their number, and how long the head of a request may take."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 30.0
"""Longest time from a connection, or from the end of its last request, to the next whole head."""
OTHER_FILES = 256


class BoundedProtocol(H11Protocol):
    """A connection. At the limit, the one that has waited longest for a head is closed."""

    connections_max = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since_s = self.loop.time()
        self._look = self.loop.call_later(HEAD_S, self._review)
        if len(self.connections) > self.connections_max:
            ours = [each for each in self.connections if isinstance(each, BoundedProtocol)]
            waiting = [each for each in ours if each._waits()]
            min(waiting, key=lambda each: each._since_s).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._since_s = self.loop.time()
        super().on_response_complete()

    def _waits(self) -> bool:
        """Returns whether no request is in progress."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def _review(self) -> None:
        if self._waits() and self.loop.time() - self._since_s >= HEAD_S:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(HEAD_S / 2, self._review)


def bounded(connections_max: int) -> type[BoundedProtocol]:
    """Returns the protocol with this limit, or less where this process may have less files open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHER_FILES
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    fields = {"connections_max": files - OTHER_FILES}
    return type("GatewayProtocol", (BoundedProtocol,), fields)
