"""How a request reaches an LLM server: TLS, proxies, credentials, connections, its body."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from carpool.settings import Secret
from carpool.testing.llm_server import LlmServer
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmRefusal, LlmRequest
from generator.llm.server_facts import ServerFacts
from generator.settings import LlmSettings
from tests.generator.test_llm_dialects import EVENTS, ReplayServer, Reply
from tests.generator.test_llm_servers import REQUEST, asked, at
from tests.rig.certificates import CertificateAuthority
from tests.waiting import WAIT_S

MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
LISTED = Reply(head="200 OK\r\nContent-Type: application/json", pieces=(MODELS,))
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
ELSEWHERE = "http://llm.invalid/v1"
STREAM = (
    b'data: {"model":"m","choices":[{"delta":{"content":"ab"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.fixture(autouse=True)
def no_proxy_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def basic(credentials: str) -> str:
    return "basic " + base64.b64encode(credentials.encode()).decode().lower()


def test_the_body_of_a_request_is_what_its_server_documents() -> None:
    with LlmServer() as server:
        engine = at(server, extra_body={"top_k": 1}, sends_priority=True)
        asked(engine, REQUEST)
        assert server.last is not None
        ids = asyncio.run(_ids(at(server), REQUEST))
        assert (server.last.path, server.last.headers["x-request-id"]) == (
            "/v1/completions",
            REQUEST.id,
        )
        assert "authorization" not in server.last.headers, "there is no key"
        assert json.loads(server.last.body) == {
            "model": server.model,
            "prompt": list(ids),
            "max_tokens": REQUEST.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "priority": 0,
            "top_k": 1,
        }


async def _ids(engine: OpenAiLlm, request: LlmRequest) -> tuple[int, ...]:
    try:
        return await engine.tokenize(request)
    finally:
        await engine.close()


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy"])
def test_a_server_elsewhere_is_asked_through_the_proxy_of_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = ReplayServer(always=LISTED)
    with proxy.running() as at_proxy:
        port = at_proxy.base_url.split(":")[2].removesuffix("/v1")
        monkeypatch.setenv(name, f"me:secret@127.0.0.1:{port}")
        asked(OpenAiLlm(LlmSettings(base_url=ELSEWHERE, model="m")))
        asked(OpenAiLlm(LlmSettings(base_url=at_proxy.base_url, model="m")))
        seen, here = proxy.heads[0].lower(), proxy.heads[-1].lower()
        assert seen.startswith(f"get {ELSEWHERE}/models ")
        assert f"proxy-authorization: {basic('me:secret')}" in seen
        assert "proxy-authorization" not in here, "a server on this machine needs no proxy"
        monkeypatch.setenv("no_proxy", "llm.invalid")
        with pytest.raises(LlmRefusal, match="cannot be reached"):
            asked(OpenAiLlm(LlmSettings(base_url=ELSEWHERE, model="m")))


def test_a_proxy_that_refuses_or_is_of_another_kind_is_named_and_its_password_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = ReplayServer(always=Reply(head="407 No", pieces=()))
    with proxy.running() as at_proxy:
        port = at_proxy.base_url.split(":")[2].removesuffix("/v1")
        for scheme in ("http", "socks5"):
            monkeypatch.setenv("https_proxy", f"{scheme}://me:secret@127.0.0.1:{port}")
            with pytest.raises(LlmRefusal) as error:
                asked(OpenAiLlm(LlmSettings(base_url="https://llm.invalid/v1", model="m")))
            assert "secret" not in str(error.value)
            assert error.value.kind == ("unreachable" if scheme == "http" else "broken")
    assert proxy.heads[0].startswith("CONNECT llm.invalid:443 ")


def test_credentials_in_the_url_are_sent_in_place_of_the_key_and_never_told() -> None:
    server = ReplayServer(always=LISTED)
    with server.running() as llm:
        url = llm.base_url.replace("http://", "http://me:p%40ss@")
        asked(OpenAiLlm(LlmSettings(base_url=url, model="m", api_key=Secret("sk-1"))))
        with pytest.raises(LlmRefusal) as error:
            asked(OpenAiLlm(LlmSettings(base_url=url, model="other")))
    assert f"authorization: {basic('me:p@ss')}" in server.heads[0].lower()
    assert "p@ss" not in str(error.value) and "p%40ss" not in str(error.value)


CHECK = """
import asyncio, sys
from generator.llm.openai_api import OpenAiLlm
from generator.llm.server_facts import ServerFacts
from generator.settings import LlmSettings
engine = OpenAiLlm(LlmSettings(base_url=sys.argv[1], model="m"))
try:
    asyncio.run(engine.check())
    print("trusted")
except Exception as error:
    print(error)
"""


def test_a_certificate_is_checked_by_the_authorities_of_the_environment(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)

    def said(*, expired: bool = False, **environment: str) -> str:
        files = authority.sign("llm", expired=expired)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        return asyncio.run(_said_of(context, environment))

    trusted = {"SSL_CERT_FILE": str(authority.certificate)}
    assert said(**trusted) == "trusted"
    assert "certificate verify failed" in (unknown := said())
    assert unknown.startswith("it cannot be reached")
    assert "certificate has expired" in said(expired=True, **trusted)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serves connections; yields HOST:PORT. Ends when every client has left."""
    tasks = list[asyncio.Task[None] | None]()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        await serve(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0, ssl=context) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait_for(asyncio.gather(*filter(None, tasks)), WAIT_S)


async def _said_of(context: ssl.SSLContext, environment: dict[str, str]) -> str:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (head := await _head(reader)) is not None:
            body = MODELS if b" /v1/models " in head else b"{}"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with serving(serve, context) as address:
        url = f"https://{address}/v1"
        command = [sys.executable, "-c", CHECK, url]
        run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
        done = await asyncio.to_thread(
            run, command, env={**os.environ, **environment}, capture_output=True, text=True
        )
        return done.stdout.strip().splitlines()[-1]


async def _head(reader: asyncio.StreamReader) -> bytes | None:
    """The head of the next request, after its body was read; None at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            await reader.readexactly(int(value))
    return head


def test_a_connection_is_used_again_although_its_reply_ends_after_the_answer() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await _head(reader) is not None:
            begin = f"HTTP/1.1 200 OK\r\nContent-Type: {EVENTS}\r\nTransfer-Encoding: chunked"
            writer.write(f"{begin}\r\n\r\n{len(STREAM):x}\r\n".encode() + STREAM + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(b"0\r\n\r\n")

    async def main() -> None:
        async with serving(serve) as address:
            engine = OpenAiLlm(LlmSettings(base_url=f"http://{address}/v1", model="m"))
            engine._facts = ServerFacts()
            for _ in range(3):
                assert [event async for event in engine.stream(REQUEST)]
            await engine.close()

    asyncio.run(main())
    assert connections == 1
