"""One request from its first to its last token: what it has written so far, and what it comes
to.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import aclosing

from generator.answers import Generated
from generator.llm.protocol import LlmEngine, LlmFinished, LlmPiece, LlmRefusal, LlmRequest
from generator.plan.answer_text import AnswerParser, written

RAW_CHARS_PER_TOKEN_MAX = 64
"""Beyond so many characters a token that was asked for, a server does not keep to `max_tokens`, and
is broken off.
"""


async def stream_answer(
    engine: LlmEngine,
    request: LlmRequest,
    *,
    on_first_token: Callable[[], None],
    on_text: Callable[[str, int, str], None],
) -> Generated:
    """Sends one request and returns what it came to. Raises what the engine raises.

    `on_text(generation_id, seq, text)` gets the answer's text as it is written, out of the object
    around it. Every call makes a generation of its own, with its own id. Cancelling it ends the
    request at the server.
    """
    generation_id = str(uuid.uuid4())
    reader = AnswerParser()
    pieces: list[str] = []
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
                    f"it writes on beyond the {request.max_tokens} tokens that it was asked for",
                )
            text = reader.feed(event.text)
            if text:
                on_text(generation_id, seq, text)
                seq += 1
    assert finished is not None, "an engine ends in LlmFinished, or raises"
    return Generated(
        generation_id=generation_id, written=written("".join(pieces)), finished=finished
    )
