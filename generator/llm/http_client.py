"""Requests over HTTP to one server: JSON out, bytes back. It neither retries nor redirects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

import carpool

SOFTWARE = f"carpool/{carpool.__version__}"
CONNECT_TIMEOUT_S = 5.0
IDLE_S = 4.0
"""How long an unused connection is kept: vLLM closes it after 5 s."""
BODY_BYTES_MAX = 16 * 1024 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Servers on this machine are not asked through the proxies of the environment."""
NO_CONNECTION = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)
"""Errors of a request that has not reached the server."""


class StatusError(Exception):
    """A reply whose status is not one of success; the message is what the server says of it."""

    def __init__(self, status: int, headers: Mapping[str, str], message: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class HttpClient:
    """The connections to a server. Made and used in one event loop.

    Certificates are checked by the system's store, or by the file that `SSL_CERT_FILE` names.
    Calls raise `StatusError`, errors of aiohttp, and `ValueError` for too long a body.
    """

    def __init__(self, base_url: str, headers: Sequence[Mapping[str, str]]) -> None:
        """Connects with the first request. `headers`: later ones count.

        A name and a password in the URL are credentials, in place of others. Raises `ValueError`
        where the environment names a proxy that does not speak HTTP.
        """
        url, own = URL(base_url), aiohttp.BasicAuth.from_url(URL(base_url))
        fields = CIMultiDict({"User-Agent": SOFTWARE, "Accept-Encoding": "identity"})
        for some in (*headers, {"Authorization": own.encode()} if own is not None else {}):
            fields.update(some)
        self._base_url = str(url.with_user(None)).rstrip("/")
        self._proxy = _proxy_of(base_url)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=fields,
        )

    async def send(
        self, path: str, body: Mapping[str, object] | None = None, *, id: str = ""
    ) -> aiohttp.ClientResponse:
        """Returns a reply when its head has come; the caller closes it.

        `path` follows the base URL; one that begins with `..` is outside its `/v1`. A `body` is
        posted, as JSON. `id` names the request in the server's logs.
        """
        url = f"{self._base_url}{path}"
        if path.startswith(".."):
            url = self._base_url.removesuffix("/v1") + path.removeprefix("..")
        response = await self._session.request(
            "GET" if body is None else "POST",
            url,
            data=None if body is None else msgspec.json.encode(body),
            headers={
                **({} if body is None else {"Content-Type": "application/json"}),
                **({"X-Request-Id": id} if id else {}),
            },
            proxy=self._proxy,
            allow_redirects=False,  # the prompt and the key are for this server
        )
        if response.status < 300:
            return response
        async with response:
            said = _message(await _whole(response)) or response.reason or "no reason is given"
            raise StatusError(response.status, response.headers, said)

    async def fetch(self, path: str, body: Mapping[str, object] | None = None) -> bytes:
        """Returns the whole body of a reply; see `send`."""
        async with await self.send(path, body) as response:
            return await _whole(response)

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"its reply is longer than {BODY_BYTES_MAX} bytes")
    return bytes(body)


def _message(body: bytes) -> str:
    """Returns what the body of an error says: its `message`, or all of it."""
    text = body.decode(errors="replace").strip()
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return text
    for name in ("error", "message"):
        said = said.get(name, said) if isinstance(said, dict) else said
    return said if isinstance(said, str) else text


def _proxy_of(base_url: str) -> str | None:
    """Returns the proxy that the environment names for a server, if any."""
    url = urlsplit(base_url)
    if url.hostname in _LOOPBACK or proxy_bypass(url.netloc.rpartition("@")[2]):
        return None
    by_scheme = getproxies()
    proxy = by_scheme.get(url.scheme) or by_scheme.get("all")
    if proxy is None or proxy.startswith(("http://", "https://")):
        return proxy
    if "://" in proxy:
        raise ValueError(f"the proxy {proxy} of the environment does not speak HTTP")
    return f"http://{proxy}"
