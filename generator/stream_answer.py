"""One request to the LLM server, from its first to its last token."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from generator.llm.protocol import LlmEngine, LlmFinished, LlmPiece, LlmRefusal, LlmRequest
from generator.plan.answer_text import TextReader, written_once, written_text
from generator.plan.repeats import RepeatFinder
from generator.query_in_progress import Generated

RAW_CHARS_PER_TOKEN_MAX = 64
"""A server that writes more characters a token ignores `max_tokens`; its request is cancelled."""
REPETITION = "repetition"
"""The `finish_reason` of an answer that Carpool ended, because its text repeated itself."""


async def stream_answer(
    engine: LlmEngine,
    request: LlmRequest,
    *,
    on_first_token: Callable[[], None],
    on_text: Callable[[str, int, str], None],
    on_broken: Callable[[LlmFinished], None],
) -> Generated:
    """Sends one request and returns its result. Raises what the engine raises.

    `on_broken` is called before an error is raised, or if the call is cancelled, with the tokens so
    far.

    `on_text(generation_id, seq, text)` gets the text of the answer as it is written. Every call has
    a new generation id. To cancel the call cancels the request.

    A text that repeats itself (`generator.plan.repeats`) ends before the repetition, and the
    request is cancelled. Its tokens are counted in the same way.
    """
    pieces: list[LlmPiece] = []
    try:
        return await _read(engine, request, pieces, on_first_token, on_text)
    except BaseException:
        if pieces:
            on_broken(_ended_here(pieces, "broken"))
        raise


async def _read(
    engine: LlmEngine,
    request: LlmRequest,
    pieces: list[LlmPiece],
    on_first_token: Callable[[], None],
    on_text: Callable[[str, int, str], None],
) -> Generated:
    generation_id = str(uuid.uuid4())
    reader, repeats = TextReader(), RepeatFinder()
    seq = 0
    chars_left = request.max_tokens * RAW_CHARS_PER_TOKEN_MAX
    answer = ""
    finished: LlmFinished | None = None
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            if not isinstance(event, LlmPiece):
                finished = event
                break
            if not pieces:
                on_first_token()
            pieces.append(event)
            chars_left -= len(event.text)
            if chars_left < 0:
                raise LlmRefusal(
                    "broken",
                    f"it does not stop after the {request.max_tokens} tokens that were requested",
                )
            text = reader.feed(event.text)
            if not text:
                continue
            answer += text
            kept = repeats.feed(text)
            if kept is not None:
                return Generated(
                    generation_id=generation_id,
                    written=written_once(answer[:kept]),
                    finished=_ended_here(pieces, REPETITION),
                )
            on_text(generation_id, seq, text)
            seq += 1
    assert finished is not None, "an engine ends in LlmFinished, or raises"
    text = "".join(piece.text for piece in pieces)
    whole = written_text(text, is_cut=finished.finish_reason == "length")
    return Generated(generation_id=generation_id, written=whole, finished=finished)


def _ended_here(pieces: list[LlmPiece], reason: str) -> LlmFinished:
    """Returns the end of an answer whose request ends after these pieces."""
    return replace(pieces[-1].so_far, finish_reason=reason)
