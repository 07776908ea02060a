"""A real MCP client against a gateway, and against `carpool mcp`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from schemas.answer import Fetched, FetchedPassage, FoundPassage
from schemas.query import Query
from schemas.record import Record, Source
from tests.gateway.test_sdk import whole
from tests.producers.responder import Responder, answer_to


def reply(query: Query, source: Source) -> list[Record]:
    if query.fetch:
        passages = tuple(FetchedPassage(n=n, text=f"part {n}", title="A") for n in (1, 2))
        count = 2 if query.fetch == ("docs/a.md",) else 0
        fetched = Fetched(id=query.fetch[0], count=count, passages=passages[:count])
        return [answer_to(query, source, fetched=(fetched,))]
    if query.generation is not None and query.generation.extractive:
        found = [
            FoundPassage(id="a#1", text="x", title="A", metadata={"url": "https://x.org"}),
            FoundPassage(id="b#2", text="y"),
        ]
        return [answer_to(query, source, passages=tuple(found[: query.top_k]))]
    return [whole(query, source)]


@asynccontextmanager
async def by_http(address: tuple[str, str]) -> AsyncIterator[ClientSession]:
    base_url, key = address
    headers = {"Authorization": f"Bearer {key}"}
    url = f"{base_url.removesuffix('/v1')}/mcp"
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        streamable_http_client(url, http_client=http) as streams,
        ClientSession(*streams[:2]) as session,
    ):
        await session.initialize()
        yield session


@asynccontextmanager
async def by_stdio(bootstrap: str, folder: Path) -> AsyncIterator[ClientSession]:
    command = ["-m", "carpool", "mcp", "-b", bootstrap]
    environ = os.environ | {"PYTHONPATH": str(Path.cwd())}
    async with (
        stdio_client(
            StdioServerParameters(command=sys.executable, args=command, cwd=folder, env=environ)
        ) as streams,
        ClientSession(*streams) as session,
    ):
        await session.initialize()
        yield session


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_an_agent_searches_fetches_and_asks(
    way: str, responder: Responder, address: tuple[str, str], tmp_path: Path
) -> None:
    responder.reply = reply

    async def run() -> None:
        session_of = by_http(address) if way == "http" else by_stdio(responder.bootstrap, tmp_path)
        async with session_of as session:
            tools = await session.list_tools()
            assert [tool.name for tool in tools.tools] == ["search", "fetch", "ask"]
            first, second = (await call(session, "search", query="How high?"))["results"]
            assert first == {"id": "a#1", "title": "A", "url": "https://x.org"}
            if way == "http":
                assert "/passages/b%232?signature=" in second["url"]
            else:
                assert second["url"] == "carpool:b#2", "no gateway knows a key of this folder"
            few = await call(session, "search", query="How high?", top_k=1)
            assert len(few["results"]) == 1
            found = await call(session, "fetch", id="docs/a.md")
            assert (found["title"], found["text"]) == ("A", "part 1\n\npart 2")
            said = await call(session, "ask", question="How high?")
            assert [source["id"] for source in said["sources"]] == ["docs/a.md#1", "docs/b.md#1"]
            for name, given, why in (
                ("fetch", {"id": "no"}, "no document 'no'"),
                ("search", {}, "'query' is missing"),
                ("search", {"query": "a", "top_k": 0}, "top_k"),
                ("drop", {}, "no tool 'drop'"),
            ):
                result = await session.call_tool(name, given)
                assert result.is_error and why in result.content[0].text  # type: ignore[union-attr]

    asyncio.run(run())


async def call(session: ClientSession, name: str, **given: Any) -> Any:
    result = await session.call_tool(name, given)
    (item,) = result.content
    assert item.type == "text" and not result.is_error, item
    return json.loads(item.text)
