"""One request to the LLM server, from its first to its last token."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import count

from generator.llm.protocol import LlmEngine, LlmFinished, LlmPiece, LlmRefusal, LlmRequest
from generator.plan.answer_text import TextReader, written_once, written_text
from generator.plan.repeats import RepeatFinder
from generator.query_in_progress import Generated

RAW_CHARS_PER_TOKEN_MAX = 64
"""A server that writes more characters a token ignores `max_tokens`; its request is cancelled."""
REPETITION = "repetition"
"""The `finish_reason` of an answer that Carpool ended, because its text repeated itself."""
TOO_LONG = "it does not stop after the {} tokens that were requested"


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
    far. `on_text(generation_id, seq, text)` gets the text of the answer as it is written. Every
    call has a new generation id. To cancel the call cancels the request.

    A text that repeats itself (`generator.plan.repeats`) ends before the repetition, and the
    request is cancelled. Its tokens are counted in the same way.
    """
    pieces: list[LlmPiece] = []
    generation_id, seq, answer = str(uuid.uuid4()), count(), ""
    reader, repeats = TextReader(), RepeatFinder()
    chars_left = request.max_tokens * RAW_CHARS_PER_TOKEN_MAX
    try:
        async with aclosing(engine.stream(request)) as events:
            async for event in events:
                if isinstance(event, LlmFinished):
                    raw, reason = "".join(each.text for each in pieces), event.finish_reason
                    whole = written_text(raw, is_cut=reason == "length")
                    return Generated(generation_id, whole, event)
                if not pieces:
                    on_first_token()
                pieces.append(event)
                chars_left -= len(event.text)
                if chars_left < 0:
                    raise LlmRefusal("broken", TOO_LONG.format(request.max_tokens))
                text = reader.feed(event.text)
                answer += text
                if (kept := repeats.feed(text)) is not None:
                    end = _ended_here(pieces, REPETITION)
                    return Generated(generation_id, written_once(answer[:kept]), end)
                if text:
                    on_text(generation_id, next(seq), text)
    except BaseException:
        if pieces:
            on_broken(_ended_here(pieces, "broken"))
        raise
    raise AssertionError("an engine ends in LlmFinished, or raises")


def _ended_here(pieces: list[LlmPiece], reason: str) -> LlmFinished:
    """Returns the end of an answer whose request ends after these pieces."""
    return replace(pieces[-1].so_far, finish_reason=reason)
