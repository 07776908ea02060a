"""Bounds connections: their number, and how long the head of a request may take."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 30.0
"""Longest time from a connection, or from the end of its last request, to the next whole head; and
in which a client takes nothing of its answer.
"""
OTHER_FILES = 256


class BoundedProtocol(H11Protocol):
    """A connection. At the limit, the one that has waited longest for a head is closed."""

    connections_max = 0
    _stuck: asyncio.TimerHandle | None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since_s, self._stuck = self.loop.time(), None
        self._look = self.loop.call_later(HEAD_S, self._review)
        if len(self.connections) > self.connections_max:
            ours = [each for each in self.connections if isinstance(each, BoundedProtocol)]
            waiting = [each for each in ours if each._waits()]
            oldest = min(waiting, key=lambda each: each._since_s)
            self.connections.discard(oldest)  # many may come before its end is noticed
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        self._reads_nothing(None)
        super().connection_lost(exc)

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


def bounded(connections_max: int) -> type[BoundedProtocol]:
    """Returns the protocol with this limit, or less where this process may have less files open.

    Raises the limit of open files where it is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = connections_max if soft == resource.RLIM_INFINITY else soft - OTHER_FILES
    fields = {"connections_max": min(connections_max, most)}
    return type("GatewayProtocol", (BoundedProtocol,), fields)
