"""The fault proxy delays, cuts, holds and drops what a client and a server send."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bench.reliability.fault_proxy import END_TXN, FaultProxy
from carpool.kafka.embedded import free_port
from tests.waiting import WAIT_S, wait_until

FETCH = 1  # another API key


class EchoServer:
    """Replies to each request with its correlation id, and counts the requests by API key."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, struct.error), connection, connection.makefile("rb") as requests:
            while True:
                (length,) = struct.unpack(">i", requests.read(4))
                api_key, _, correlation_id = struct.unpack_from(">hhi", requests.read(length))
                self.requests.append(api_key)
                connection.sendall(struct.pack(">ii", 4, correlation_id))

    def close(self) -> None:
        self._listener.close()


class Client:
    """Sends frames of Kafka's form."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), WAIT_S)

    def send(self, api_key: int, correlation_id: int) -> None:
        self._connection.sendall(struct.pack(">ihhi", 8, api_key, 0, correlation_id))

    def reply(self, timeout_s: float = WAIT_S) -> int:
        """The correlation id of the next reply."""
        self._connection.settimeout(timeout_s)
        if len(content := self._connection.recv(8, socket.MSG_WAITALL)) < 8:
            raise ConnectionResetError
        return int(struct.unpack(">ii", content)[1])

    def ask(self, correlation_id: int) -> int:
        self.send(FETCH, correlation_id)
        return self.reply()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    echo = EchoServer()
    yield echo
    echo.close()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy(free_port(), server.port) as started:
        yield started


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[Client]:
    connected = Client(proxy.port)
    yield connected
    connected.close()


def test_a_delay_applies_to_requests_and_replies_and_keeps_their_order(
    proxy: FaultProxy, client: Client
) -> None:
    proxy.delay(0.1)
    began_s = time.monotonic()
    for number in range(5):
        client.send(FETCH, number)
    assert [client.reply() for _ in range(5)] == list(range(5))
    assert 0.2 <= time.monotonic() - began_s < 1.0  # frames are delayed side by side
    proxy.delay(0)
    assert client.ask(5) == 5


def test_a_half_open_connection_forwards_nothing_until_it_heals(
    proxy: FaultProxy, client: Client
) -> None:
    with proxy.half_open():
        client.send(FETCH, 1)
        with pytest.raises(TimeoutError):
            client.reply(timeout_s=0.2)
    assert client.reply() == 1


def test_a_held_request_arrives_after_its_release_although_its_client_has_gone(
    proxy: FaultProxy, client: Client, server: EchoServer
) -> None:
    held = proxy.hold(END_TXN)
    assert client.ask(1) == 1  # another key is not held
    client.send(END_TXN, 2)
    assert held.wait(WAIT_S)
    client.close()
    other = Client(proxy.port)
    other.send(END_TXN, 3)  # one request is held, not the next one
    assert other.reply() == 3
    other.close()
    assert server.requests == [FETCH, END_TXN]
    held.release()
    wait_until(lambda: len(server.requests) >= 3, "the request arrives")


def test_a_dropped_reply_ends_the_connection_after_the_request_took_effect(
    proxy: FaultProxy, client: Client, server: EchoServer
) -> None:
    drop = proxy.drop_reply(END_TXN)
    assert not drop.wait(0.01)
    client.send(END_TXN, 1)
    with pytest.raises(ConnectionError):
        client.reply()
    assert drop.wait(WAIT_S)
    assert server.requests == [END_TXN]
