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


class HeldRequest:
    """A request that the proxy keeps back, and all that its connection sends after it."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self.arrived = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Returns whether the request has arrived, after `timeout_s` at most."""
        return self.arrived.wait(timeout_s)

    def release(self) -> None:
        """Forwards the request, even if its client has closed the connection meanwhile."""
        self._release()


class DroppedReply:
    """A reply that the proxy does not deliver."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self.dropped = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Returns whether it was dropped, after `timeout_s` at most."""
        return self.dropped.wait(timeout_s)

    def cancel(self) -> None:
        """Lets the reply of a request pass that has not arrived yet."""
        self._cancel()


@dataclass(slots=True)
class _Hold:
    api_key: int
    released: asyncio.Event
    held: HeldRequest


@dataclass(slots=True, eq=False)
class _Link:
    """One client's connection, and the proxy's own connection to the broker for it."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    dropped: dict[int, DroppedReply] = field(default_factory=dict)
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
        self._holds: list[_Hold] = []
        self._drops: list[tuple[int, DroppedReply]] = []

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"

    def delay(self, seconds: float) -> None:
        """Delays every request and every reply by `seconds`, so a round trip by twice that."""

        def change() -> None:
            self._delay_s = seconds

        self._call(change)

    def cut(self) -> None:
        """Closes all connections with a reset. Clients may connect again immediately.

        A request that is held reaches the broker after its release nevertheless.
        """

        def change() -> None:
            self._cuts += 1
            for link in tuple(self._links):
                link.cut()

        self._call(change)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Closes all connections, and closes new ones as soon as they are made, meanwhile."""

        def change(is_down: bool) -> None:
            self._is_down = is_down

        self._call(lambda: change(True))
        self.cut()
        try:
            yield
        finally:
            self._call(lambda: change(False))

    @contextmanager
    def half_open(self) -> Iterator[None]:
        """Forwards nothing meanwhile, and keeps all connections open: a lost network."""
        self._call(self._flows.clear)
        try:
            yield
        finally:
            self._call(self._flows.set)

    def hold(self, api_key: int) -> HeldRequest:
        """Keeps back the next request with this key until it is released."""
        released = asyncio.Event()
        held = HeldRequest(lambda: self._call(released.set))
        self._call(lambda: self._holds.append(_Hold(api_key, released, held)))
        return held

    def drop_reply(self, api_key: int) -> DroppedReply:
        """Forwards the next request with this key, then cuts the connection instead of replying."""

        def remove() -> None:
            self._drops = [each for each in self._drops if each[1] is not drop]

        drop = DroppedReply(lambda: self._call(remove))
        self._call(lambda: self._drops.append((api_key, drop)))
        return drop

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

    def _call(self, change: Callable[[], object]) -> None:
        async def run() -> None:
            change()

        self._await(run())

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    # ---- on the event loop

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
        for hold in self._holds:
            if hold.api_key == api_key:
                self._holds.remove(hold)
                link.is_held = True
                hold.held.arrived.set()
                await hold.released.wait()
                link.is_held = False
                break
        for found in self._drops:
            if found[0] == api_key:
                self._drops.remove(found)
                link.dropped[correlation_id] = found[1]
                break
        return True

    async def _reply(self, link: _Link, frame: bytes) -> bool:
        (correlation_id,) = struct.unpack_from(">i", frame, 4)
        drop = link.dropped.pop(correlation_id, None)
        if drop is None:
            return True
        drop.dropped.set()
        link.cut()
        return False
