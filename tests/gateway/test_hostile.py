"""What may not hurt a gateway: floods of connections, bodies and heads; slow and broken clients."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from urllib.parse import urlsplit

import httpx2
import openai
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway import connections
from tests.gateway.conftest import started
from tests.producers.responder import Responder
from tests.rig.certificates import CertificateAuthority
from tests.waiting import WAIT_S, wait_until

FLOOD = """
import resource, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, hard))
flood = [socket.create_connection((host, port)) for _ in range(count)]
print("open", flush=True)
sys.stdin.read()
"""
"""A process with so many connections, which needs more open files than a test may."""
SETTINGS = ("gateway.connections_max=50", "gateway.body_bytes_max=20000")


@contextmanager
def connected(base_url: str) -> Iterator[socket.socket]:
    at = urlsplit(base_url)
    with socket.create_connection((at.hostname, at.port), WAIT_S) as made:
        yield made


def reply_to(address: tuple[str, str], head: str, body: bytes = b"") -> str:
    """What comes back for these bytes, up to the end of the connection."""
    base_url, key = address
    text = f"{head}\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
    with connected(base_url) as made:
        found = b""
        with suppress(OSError):  # it may be closed while this sends
            made.sendall(text.encode() + body)
        with suppress(OSError):
            while part := made.recv(65_536):
                found += part
        return found.decode(errors="replace")


POST = "POST /v1/responses HTTP/1.1"


@pytest.mark.parametrize(
    ("head", "body", "status", "why"),
    [
        (f"{POST}\r\nContent-Length: 100000000", b"", 413, "may have 20000"),
        (
            f"{POST}\r\nTransfer-Encoding: chunked",
            b"4000\r\n" + b"a" * 0x4000 + b"\r\n4000\r\n" + b"a" * 0x4000 + b"\r\n0\r\n\r\n",
            413,
            "more than 20000",
        ),
        (f"{POST}\r\nContent-Length: 19000", b"[" * 19_000, 400, "is no JSON"),
        (f"{POST}\r\nContent-Length: 9", b'{"model":', 400, "is no JSON"),
        (f"{POST}\r\nContent-Length: 2", b"[]", 400, "no JSON object"),
        (f"{POST}\r\nContent-Length: 15", b'{"input": true}', 400, "input"),
        (f"GET /v1/models HTTP/1.1\r\nX: {'a' * 100_000}", b"", 431, ""),
        ("GET /v1/models HTTP/1.1\r\n" + "\r\n".join(["X: a"] * 20_000), b"", 431, ""),
        ("GET /../../etc/passwd HTTP/1.1", b"", 404, "no such route"),
        ("DELETE /v1/responses HTTP/1.1", b"", 405, "no such route"),
        ("not http at all", b"", 400, ""),
    ],
)
def test_what_is_no_request_is_refused_and_others_go_on(
    address: tuple[str, str], sdk: openai.OpenAI, head: str, body: bytes, status: int, why: str
) -> None:
    found = reply_to(address, head, body)
    assert found.startswith(f"HTTP/1.1 {status} ") and why in found
    assert "carpool" in {each.id for each in sdk.models.list()}


def test_a_flood_of_connections_closes_the_oldest_that_wait(
    address: tuple[str, str], sdk: openai.OpenAI
) -> None:
    with ExitStack() as opened:
        flood = [opened.enter_context(connected(address[0])) for _ in range(500)]
        assert sdk.models.list().data
        are_closed(flood[:440])


def are_closed(made: list[socket.socket]) -> None:
    """Waits until these connections are closed."""
    for each in made:  # recv of an open one ends with a time-out
        each.settimeout(WAIT_S)
        with suppress(ConnectionResetError):
            assert each.recv(1) == b""


def test_a_flood_of_handshakes_that_never_end_closes_the_oldest(
    responder: Responder, tmp_path: Path
) -> None:
    authority = CertificateAuthority(tmp_path / "authority")
    files = authority.sign("gateway")
    tls = (f"gateway.tls_cert={files.certificate}", f"gateway.tls_key={files.key}")
    trust = httpx2.Client(verify=ssl.create_default_context(cafile=str(authority.certificate)))
    with (
        started(responder.bootstrap, tmp_path, SETTINGS[0], *tls) as (_, base_url, key),
        openai.OpenAI(base_url=base_url, api_key=key, http_client=trust) as sdk,
        ExitStack() as opened,
    ):
        assert base_url.startswith("https://")
        assert sdk.responses.create(model="carpool", input="safe?").output_text == "safe?"
        flood = [opened.enter_context(connected(base_url)) for _ in range(200)]
        assert sdk.models.list().data
        are_closed(flood[:140])


@pytest.mark.long
@pytest.mark.parametrize("most", [2_000, 12_000])
def test_ten_thousand_connections_that_wait_take_little_memory_and_others_are_answered(
    responder: Responder, tmp_path: Path, most: int
) -> None:
    if 0 <= (hard := resource.getrlimit(resource.RLIMIT_NOFILE)[1]) < 13_000:
        pytest.skip(f"this machine allows {hard} open files, and 13,000 are needed")
    setting = f"gateway.connections_max={most}"
    with started(responder.bootstrap, tmp_path, setting) as (process, base_url, key):
        at, pages = urlsplit(base_url), Path(f"/proc/{process.pid}/statm")
        before = int(pages.read_text().split()[1])
        command = [sys.executable, "-c", FLOOD, str(at.hostname), str(at.port), "10000"]
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as flood:
            assert flood.stdout is not None and flood.stdout.readline() == "open\n"
            for n in range(5):
                with openai.OpenAI(base_url=base_url, api_key=key) as sdk:
                    made = sdk.responses.create(model="carpool", input=f"other {n}")
                    assert made.output_text == f"other {n}"
            files = len([*Path(f"/proc/{process.pid}/fd").iterdir()])
            grown = (int(pages.read_text().split()[1]) - before) * resource.getpagesize()
            flood.communicate()
        assert min(most, 10_000) - 10 < files < min(most, 10_000) + 256, files
        assert grown < 10_000 * min(most, 10_000) + 30_000_000, grown


def test_a_slow_head_is_closed_and_a_slow_answer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.4)

    ended = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(1.2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        large = b"late" * (10_000_000 if scope["path"] == "/large" else 1)
        await send({"type": "http.response.body", "body": large, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        ended.append(scope["path"])

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=connections.bounded(100), lifespan="off", log_config=None)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before, "it is high enough"
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
    thread.start()
    wait_until(lambda: server.started, "it listens")
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with connected(url) as slow, connected(url) as busy, connected(url) as deaf:
            deaf.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
            busy.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            began_s = time.monotonic()
            slow.sendall(b"GET / HTTP/1.1\r\n")
            with pytest.raises(OSError):
                while slow.recv(1) != b"":
                    pass
                raise OSError("closed")
            assert time.monotonic() - began_s < 1.1
            found = b""
            while b"late" not in found:
                found += busy.recv(1_000)
            wait_until(lambda: "/large" in ended, "a client that reads nothing is closed")
    finally:
        server.should_exit = True
        thread.join()
