"""A proxy between Kafka clients and one broker that delays, cuts, holds and drops on command.

The broker must advertise the port of the proxy (`KafkaServer(advertised_port=...)`), so that every
connection of a client goes through the proxy. The proxy reads Kafka's frames (a length, then the
request or the reply), so the listener must not use TLS.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")

HOST = "127.0.0.1"
CALL_TIMEOUT_S = 180.0

PRODUCE, END_TXN, TXN_OFFSET_COMMIT = 0, 26, 28
"""API keys of Kafka's protocol, for `hold` and `drop_reply`."""


class Caught:
    """The next request of a kind, which is held, or whose reply is not delivered."""

    def __init__(self, release: Callable[[], None]) -> None:
        """`release`: forwards what is held, or lets a request pass that has not arrived."""
        self.release = release
        self.arrived = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Returns whether it was held or dropped, after `timeout_s` at most."""
        return self.arrived.wait(timeout_s)


@dataclass(slots=True, eq=False)
class _Wish:
    """`released`: of a request that is held; None: its reply is dropped."""

    api_key: int
    caught: Caught
    released: asyncio.Event | None


@dataclass(slots=True, eq=False)
class _Link:
    """One client's connection, and the proxy's own connection to the broker for it."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    dropped: dict[int, Caught] = field(default_factory=dict)
    """By correlation id of the request."""
    is_held: bool = False

    def cut(self) -> None:
        self.client.transport.abort()
        if not self.is_held:  # a held request still reaches the broker
            self.broker.transport.abort()


class FaultProxy:
    """A proxy on loopback for one broker. A context manager; every method is thread-safe.

    Faults hold for open and for later connections.
    """

    def __init__(self, port: int, broker_port: int) -> None:
        """`port`: where clients connect. Starts nothing."""
        self.port = port
        self._broker_port = broker_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._delay_s = 0.0
        self._flows = asyncio.Event()  # not set: bytes are read by nobody
        self._is_down = False
        self._cuts = 0
        self._wishes: list[_Wish] = []

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"

    def delay(self, seconds: float) -> None:
        """Delays every request and every reply by `seconds`, so a round trip by twice that."""
        self._call(setattr, self, "_delay_s", seconds)

    def cut(self) -> None:
        """Closes all connections with a reset. Clients may connect again immediately.

        A request that is held reaches the broker after its release nevertheless.
        """
        self._call(self._cut)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Closes all connections, and closes new ones as soon as they are made, meanwhile."""
        self._call(setattr, self, "_is_down", True)
        self.cut()
        try:
            yield
        finally:
            self._call(setattr, self, "_is_down", False)

    @contextmanager
    def half_open(self) -> Iterator[None]:
        """Forwards nothing meanwhile, and keeps all connections open: a lost network."""
        self._call(self._flows.clear)
        try:
            yield
        finally:
            self._call(self._flows.set)

    def hold(self, api_key: int) -> Caught:
        """Keeps back the next request with this key until it is released."""
        return self._catch(api_key, asyncio.Event())

    def drop_reply(self, api_key: int) -> Caught:
        """Forwards the next request with this key, then cuts the connection instead of replying."""
        return self._catch(api_key, None)

    def __enter__(self) -> FaultProxy:
        """Begins to accept connections. Raises `OSError` when the port is in use."""
        self._thread.start()
        self._flows.set()
        self._server = self._await(asyncio.start_server(self._connected, HOST, self.port))
        return self

    def __exit__(self, *_: object) -> None:
        """Cuts all connections and stops."""
        self._await(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---- from other threads

    def _catch(self, api_key: int, released: asyncio.Event | None) -> Caught:
        def release() -> None:
            if wish in self._wishes:
                self._wishes.remove(wish)
            if released is not None:
                released.set()

        wish = _Wish(api_key, Caught(lambda: self._call(release)), released)
        self._call(self._wishes.append, wish)
        return wish.caught

    def _call(self, change: Callable[..., object], *given: Any) -> None:
        async def run() -> None:
            change(*given)

        self._await(run())

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    # ---- on the event loop

    def _cut(self) -> None:
        self._cuts += 1
        for link in tuple(self._links):
            link.cut()

    async def _stop(self) -> None:
        assert self._server is not None, "not started"
        self._server.close()
        await asyncio.sleep(0)  # a connection may have been accepted just before
        while serving := tuple(self._serving):
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            await asyncio.sleep(0)

    def _connected(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(requests, client))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._is_down:
            client.transport.abort()
            return
        cuts = self._cuts
        try:
            replies, broker = await asyncio.open_connection(HOST, self._broker_port)
        except (OSError, asyncio.CancelledError):
            client.transport.abort()  # the broker is down, and so is this address
            return
        link = _Link(client, broker)
        if cuts != self._cuts:  # cut while it was opened
            link.cut()
            return
        self._links.add(link)
        try:
            await asyncio.gather(
                self._forward(requests, broker, lambda frame: self._request(link, frame)),
                self._forward(replies, client, lambda frame: self._reply(link, frame)),
            )
        finally:
            self._links.discard(link)
            link.cut()

    async def _forward(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        judge: Callable[[bytes], Coroutine[Any, Any, bool]],
    ) -> None:
        """Forwards frames in order, each after the delay. Ends with the end of `source`.

        `judge` waits as long as a frame is held, and returns whether to forward it.
        """
        frames: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()

        async def write() -> None:
            while (due := await frames.get()) is not None:
                at_s, frame = due
                await asyncio.sleep(max(0.0, at_s - self._loop.time()))
                await self._flows.wait()
                if await judge(frame):
                    target.write(frame)
                    await target.drain()

        writing = asyncio.create_task(write())
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    head = await source.readexactly(4)
                    frame = head + await source.readexactly(struct.unpack(">i", head)[0])
                    frames.put_nowait((self._loop.time() + self._delay_s, frame))
            frames.put_nowait(None)
            with suppress(OSError):
                await writing  # what was received is forwarded, also a request that is held
            target.close()
        finally:
            writing.cancel()

    async def _request(self, link: _Link, frame: bytes) -> bool:
        api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
        wish = next((each for each in self._wishes if each.api_key == api_key), None)
        if wish is None:
            return True
        self._wishes.remove(wish)
        if wish.released is None:
            link.dropped[correlation_id] = wish.caught
            return True
        link.is_held = True
        wish.caught.arrived.set()
        await wish.released.wait()
        link.is_held = False
        return True

    async def _reply(self, link: _Link, frame: bytes) -> bool:
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        drop = link.dropped.pop(correlation_id, None)
        if drop is None:
            return True
        drop.arrived.set()
        link.cut()
        return False
