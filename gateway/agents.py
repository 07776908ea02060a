"""The tools of agents, by MCP: `search`, `fetch` and `ask`.

`search` and `fetch` have the shapes that ChatGPT's connectors and deep research require: one item
of text, which is JSON. A search asks no model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import mcp.types as types
import orjson
from mcp.server import Server
from mcp.server.stdio import stdio_server

from carpool.errors import CarpoolError, RecordError
from gateway.failures import failure_of
from gateway.plan.objects import AddressOf, Object, address
from producers import Client
from schemas.answer import Answer
from schemas.query import TOP_K_MAX, Generation

Ask: TypeAlias = Callable[..., Awaitable[Answer]]
"""Asks as `Client.ask`, for the HTTP request of a call, which comes first; None: on stdio."""

TOP_K: Object = {
    "type": "integer",
    "minimum": 1,
    "maximum": TOP_K_MAX,
    "description": "How many passages.",
}


def _tool(name: str, description: str, argument: str, about: str, **more: Object) -> types.Tool:
    properties = {argument: {"type": "string", "description": about}, **more}
    schema = {"type": "object", "properties": properties, "required": [argument]}
    hints = types.ToolAnnotations(read_only_hint=True)
    return types.Tool(name=name, description=description, input_schema=schema, annotations=hints)


TOOLS = (
    _tool(
        "search",
        "Search the corpus. Returns ids, titles and addresses of passages, the best first.",
        "query",
        "What to search for, in words.",
        top_k=TOP_K,
    ),
    _tool(
        "fetch",
        "Get the whole text of a document, or of a passage with its neighbours.",
        "id",
        "An id that a search returned.",
    ),
    _tool(
        "ask",
        "Ask a question. Returns an answer from the corpus, with its sources.",
        "question",
        "The question, in a sentence.",
        top_k=TOP_K,
    ),
)


def agent_server(ask: Ask, address_of: AddressOf, version: str) -> Server[Any]:
    """Returns the MCP server."""
    calls = {"search": _search, "fetch": _fetch, "ask": _ask}

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(TOOLS))

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        given = params.arguments or {}
        if (call := calls.get(params.name)) is None:
            return _said(f"there is no tool {params.name!r}", is_error=True)
        try:
            found = await call(partial(ask, context.request), address_of, given)
        except KeyError as error:
            return _said(f"the argument {error.args[0]!r} is missing", is_error=True)
        except (CarpoolError, RecordError, TypeError) as error:
            return _said(str(error), is_error=True)
        return _said(orjson.dumps(found).decode())

    return Server(
        "carpool",
        version=version,
        instructions="Search a corpus of documents, fetch them, or ask for an answer from them.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def run_stdio(client: Client, address_of: AddressOf, version: str) -> None:
    """Serves one agent on standard input and output, until the input ends."""

    async def ask(request: None, text: str | None = None, **args: Any) -> Answer:
        return await client.ask(text, **args)

    server = agent_server(ask, address_of, version)
    async with client, stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


async def _search(ask: Ask, address_of: AddressOf, given: Mapping[str, Any]) -> Object:
    answer = await ask(
        given["query"],
        top_k=given.get("top_k"),
        passages=True,
        generation=Generation(extractive=True),
    )
    if failure := failure_of(answer):
        raise failure
    shown = [
        {
            "id": each.id,
            "title": each.title or each.id,
            "url": address((each.metadata or {}).get("url"), each.id, address_of),
        }
        for each in answer.passages
    ]
    return {"results": shown}


async def _fetch(ask: Ask, address_of: AddressOf, given: Mapping[str, Any]) -> Object:
    name = given["id"]
    answer = await ask(fetch=[name])
    if failure := failure_of(answer):
        raise failure
    found = answer.fetched[0] if answer.fetched else None
    if found is None or not found.passages:
        raise RecordError("invalid_value", f"id: there is no document {name!r}", field="$.id")
    metadata = found.metadata or {}
    return {
        "id": name,
        "title": found.passages[0].title or name,
        "text": "\n\n".join(each.text for each in found.passages),
        "url": address(metadata.get("url"), name, address_of),
        "metadata": metadata,
    }


async def _ask(ask: Ask, address_of: AddressOf, given: Mapping[str, Any]) -> Object:
    answer = await ask(given["question"], top_k=given.get("top_k"))
    if failure := failure_of(answer):
        raise failure
    sources = {
        each.doc_id: {
            "n": each.n,
            "id": each.doc_id,
            "title": each.title or each.doc_id,
            "url": address(each.url, each.doc_id, address_of),
            "quote": each.snippet,
        }
        for each in answer.citations
    }
    return {"answer": answer.answer, "sources": list(sources.values())}


def _said(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], is_error=is_error
    )
