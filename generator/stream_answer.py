"""One request to the LLM server, from its first to its last token."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import aclosing

from generator.llm.protocol import LlmEngine, LlmFinished, LlmPiece, LlmRefusal, LlmRequest
from generator.plan.answer_text import AnswerParser, written
from generator.query_in_progress import Generated

RAW_CHARS_PER_TOKEN_MAX = 64
"""A server that writes more characters a token ignores `max_tokens`; its request is cancelled."""


async def stream_answer(
    engine: LlmEngine,
    request: LlmRequest,
    *,
    on_first_token: Callable[[], None],
    on_text: Callable[[str, int, str], None],
    on_broken: Callable[[int], None],
) -> Generated:
    """Sends one request and returns its result. Raises what the engine raises.

    `on_broken(pieces)` is called before an error is raised, or if the call is cancelled: a server
    sends about one piece a token.

    `on_text(generation_id, seq, text)` gets the text of the answer as it is written, without the
    JSON around it. Every call has a new generation id. To cancel the call cancels the request.
    """
    pieces: list[str] = []
    try:
        return await _read(engine, request, pieces, on_first_token, on_text)
    except BaseException:
        on_broken(len(pieces))
        raise


async def _read(
    engine: LlmEngine,
    request: LlmRequest,
    pieces: list[str],
    on_first_token: Callable[[], None],
    on_text: Callable[[str, int, str], None],
) -> Generated:
    generation_id = str(uuid.uuid4())
    reader = AnswerParser()
    seq = 0
    chars_left = request.max_tokens * RAW_CHARS_PER_TOKEN_MAX
    finished: LlmFinished | None = None
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            if not isinstance(event, LlmPiece):
                finished = event
                break
            if not pieces:
                on_first_token()
            pieces.append(event.text)
            chars_left -= len(event.text)
            if chars_left < 0:
                raise LlmRefusal(
                    "broken",
                    f"it does not stop after the {request.max_tokens} tokens that were requested",
                )
            text = reader.feed(event.text)
            if text:
                on_text(generation_id, seq, text)
                seq += 1
    assert finished is not None, "an engine ends in LlmFinished, or raises"
    return Generated(
        generation_id=generation_id, written=written("".join(pieces)), finished=finished
    )
