"""One reply of a server as it comes: its text, and when it has taken too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from aiohttp import ClientResponse

from generator.llm.protocol import LlmRefusal
from generator.llm.server_events import ServerError, ServerEvents, WrongPage
from generator.settings import LlmSettings

END_TIMEOUT_S = 0.05
"""How long a reply may stay open after its answer is whole."""
TOKEN_S_MAX = 2.0
"""Seconds a token, on average, that an answer may take at most."""


async def read_reply(
    response: ClientResponse,
    events: ServerEvents,
    settings: LlmSettings,
    max_tokens: int,
    first_token_at: float | None,
) -> AsyncGenerator[str, None]:
    """Yields text as it comes; only text moves the deadline, which begins as `first_token_at`.

    Raises what the client and `ServerEvents` raise, and TimeoutError.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + settings.first_token_timeout_s + settings.next_token_timeout_s
    ends_at += TOKEN_S_MAX * max_tokens
    deadline = ends_at if first_token_at is None else min(first_token_at, ends_at)
    is_last = False
    while not (is_last or events.is_done):
        try:
            async with asyncio.timeout_at(deadline):
                piece = await response.content.readany()
            if loop.time() > deadline:  # a flood of events never waits
                raise TimeoutError
            is_last = not piece
            text = _read(events, piece, is_last=is_last)
        except Exception:
            if not events.has_ended:
                raise
            break
        if text:
            deadline = min(loop.time() + settings.next_token_timeout_s, ends_at)
            yield text
    if not events.has_ended:
        raise LlmRefusal(
            "broken",
            "it ended its answer without a finish_reason: the connection or the server failed",
        )
    if not (is_last or response.content.at_eof()):  # read to its end, a connection is kept
        with suppress(Exception):
            async with asyncio.timeout(END_TIMEOUT_S):
                await response.content.readany()


def _read(events: ServerEvents, piece: bytes, *, is_last: bool) -> str:
    try:
        return events.feed(piece, is_last=is_last)
    except (ServerError, WrongPage):
        raise
    except Exception as error:
        raise LlmRefusal.unreadable(error) from error
