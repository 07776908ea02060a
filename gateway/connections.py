"""Bounds connections: their number, and how long a handshake and the head of a request may take."""

from __future__ import annotations

import asyncio
import resource
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 30.0
"""Longest time from a connection, or from the end of its last request, to the next whole head; and
in which a client takes nothing of its answer.
"""
OTHER_FILES = 256
TLS_END_S = 5.0
"""How long a client may take to answer the end of TLS: SIGTERM waits for those that do not."""
TLS_BUFFER_BYTES = 32 * 1024
"""Of a connection, at most twice: asyncio's own have eight times as many."""


class BoundedProtocol(H11Protocol):
    """A connection. At the limit, the one that has waited longest for a head is closed."""

    connections_max = 0
    _stuck: asyncio.TimerHandle | None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        is_counted = self in self.connections  # since its handshake began
        super().connection_made(transport)
        if is_counted:
            return
        self._since_s, self._stuck = self.loop.time(), None
        self._look = self.loop.call_later(HEAD_S, self._review)
        if len(self.connections) > self.connections_max:
            ours = [each for each in self.connections if isinstance(each, BoundedProtocol)]
            waiting = [each for each in ours if each._waits()]
            oldest = min(waiting, key=lambda each: each._since_s)
            self.connections.discard(oldest)  # many may come before its end is noticed
            oldest.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._look.cancel()
        self._reads_nothing(None)
        super().connection_lost(exc)  # type: ignore[arg-type]

    def pause_writing(self) -> None:
        self._reads_nothing(self.loop.call_later(HEAD_S, self.transport.abort))
        super().pause_writing()

    def resume_writing(self) -> None:
        self._reads_nothing(None)
        super().resume_writing()

    def _reads_nothing(self, timer: asyncio.TimerHandle | None) -> None:
        """Replaces the timer that closes a client which takes no more of its answer."""
        if self._stuck is not None:
            self._stuck.cancel()
        self._stuck = timer

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


class BoundedTls(SSLProtocol):
    """TLS of a connection that is bounded from its first byte, not only after the handshake."""

    max_size = TLS_BUFFER_BYTES

    def __init__(self, within: BoundedProtocol, tls: ssl.SSLContext) -> None:
        waiter: Any = None
        super().__init__(
            within.loop, within, tls, waiter, server_side=True, ssl_shutdown_timeout=TLS_END_S
        )
        self._within = within

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._within.connection_made(transport)  # type: ignore[arg-type]
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._within.connection_lost(exc)  # asyncio does not, before the handshake has ended


def bounded(connections_max: int, tls: ssl.SSLContext | None = None) -> Any:
    """Returns what makes a protocol with this limit, or less where this process may have less files
    open.

    Raises the limit of open files where it is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = connections_max if soft == resource.RLIM_INFINITY else soft - OTHER_FILES
    fields = {"connections_max": min(connections_max, most)}
    made = type("GatewayProtocol", (BoundedProtocol,), fields)
    return made if tls is None else lambda **given: BoundedTls(made(**given), tls)
