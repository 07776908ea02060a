"""Reads the load of a vLLM from GET /metrics."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from openai import DefaultAsyncHttpxClient

from generator.plan.concurrency import ServerLoad

TIMEOUT_S = 2.0
PAGE_BYTES_MAX = 4 * 1024 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The metric's name, and its name in vLLM before 0.9."""
_PREEMPTIONS = "vllm:num_preemptions_total"


class ServerLoadReader:
    """Reads the page of one server. Makes its client at the first call, in the event loop."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url, self._headers = url, dict(headers)
        self._client: DefaultAsyncHttpxClient | None = None

    async def read(self) -> ServerLoad | None:
        """Returns the load, within `TIMEOUT_S`; None if the server does not say. Never raises."""
        if self._client is None:
            self._client = DefaultAsyncHttpxClient(
                headers=self._headers, follow_redirects=False, trust_env=uses_proxies(self._url)
            )
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._client.stream("GET", self._url) as reply,
            ):
                if reply.status_code != 200:
                    return None
                page = await _read_page(reply.aiter_bytes())
        except Exception:  # of the HTTP library; a page that is missing is no failure
            return None
        return None if page is None else parse_load(page)

    async def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def uses_proxies(url: str) -> bool:
    """Returns whether the proxies of the environment are used: not for a server on this machine."""
    return urlsplit(url).hostname not in _LOOPBACK


async def _read_page(chunks: AsyncIterator[bytes]) -> str | None:
    page = bytearray()
    async for chunk in chunks:
        page += chunk
        if len(page) > PAGE_BYTES_MAX:
            return None
    return page.decode("utf-8", "replace")


def parse_load(page: str) -> ServerLoad | None:
    """Returns the load in a page of Prometheus's text format; None if it has no such figures.

    Of several engines the requests are added, and the fullest memory counts.
    """
    values: dict[str, list[float]] = {}
    for line in page.splitlines():
        if not line.startswith("vllm:"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        # The value stands after the labels, which may hold spaces. A timestamp may follow it.
        rest = line.rpartition("}")[2] if "{" in line else line.removeprefix(name)
        try:
            value = float(rest.split()[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value) and value >= 0:
            values.setdefault(name, []).append(value)
    if _RUNNING not in values or _WAITING not in values:
        return None
    kv_used = next((values[name] for name in _KV_USED if name in values), [0.0])
    return ServerLoad(
        running=int(sum(values[_RUNNING])),
        waiting=int(sum(values[_WAITING])),
        kv_used=max(kv_used),
        preemptions=int(sum(values.get(_PREEMPTIONS, ()))),
    )
