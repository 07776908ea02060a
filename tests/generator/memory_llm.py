"""A scripted model in memory, for tests and for trials without a server."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from generator.llm.protocol import (
    LlmEvent,
    LlmFinished,
    LlmPiece,
    LlmRefusal,
    LlmRequest,
    PromptRefused,
)

NAME = "carpool-memory-model"
NOTHING = LlmFinished(
    finish_reason="", model=NAME, input_tokens=0, output_tokens=0, cached_tokens=0
)
_WORDS = re.compile(r"\S+\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The reply to one request: `text`, or None for an answer made from the prompt.

    `hangs_after`: the piece before which the reply hangs; `error`: raised after the last piece.
    """

    text: str | None = None
    finish_reason: str = "stop"
    hangs_after: int | None = None
    error: LlmRefusal | PromptRefused | None = None


@dataclass
class MemoryLlm:
    """An `LlmEngine` that gives one reply of `script` a request, then answers from the prompt.

    `checks` scripts the checks, `canaries` the canaries: an error or None each; later ones pass.
    `requests` lists the requests, `cancelled` the ids of cancelled ones. A repeated prompt counts
    as cached. `warm_ups_cached`: tokens that a warm-up reports as cached before it.
    """

    script: Sequence[Reply] = ()
    checks: Sequence[LlmRefusal | None] = ()
    canaries: Sequence[LlmRefusal | None] = ()
    requests: list[LlmRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    warmed: list[LlmRequest] = field(default_factory=list)
    warm_ups_hang: bool = False
    warm_ups_cached: int = 0
    address: str = "memory"
    sample_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._replies = deque(self.script)
        self._checks = deque(self.checks)
        self._canaries = deque(self.canaries)

    async def check(self) -> None:
        error = self._checks.popleft() if self._checks else None
        if error is not None:
            raise error

    async def canary(self) -> None:
        error = self._canaries.popleft() if self._canaries else None
        if error is not None:
            raise error

    async def tokenize(self, request: LlmRequest) -> tuple[int, ...]:
        words = f"{request.system}\n{request.user}".split()
        return tuple(zlib.crc32(word.encode("utf-8", "replace")) for word in words)

    async def prefix(self, request: LlmRequest, passages: int) -> tuple[int, ...]:
        user = "".join(request.segments[: 1 + passages])
        return await self.tokenize(replace(request, user=user))

    async def _warm(self, request: LlmRequest) -> LlmFinished:
        self.warmed.append(request)
        try:
            if self.warm_ups_hang:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        return LlmFinished(
            finish_reason="length",
            model=NAME,
            input_tokens=len(request.token_ids),
            output_tokens=1,
            cached_tokens=self.warm_ups_cached,
        )

    async def waiting(self) -> int | None:
        return None

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        if request.max_tokens == 1:
            yield await self._warm(request)
            return
        reply = self._replies.popleft() if self._replies else Reply()
        is_cached = any(
            (seen.system, seen.user) == (request.system, request.user) for seen in self.requests
        )
        self.requests.append(request)
        pieces = _WORDS.findall(reply.text if reply.text is not None else _answer(request))
        try:
            for index, piece in enumerate(pieces):
                if index == reply.hangs_after:
                    await asyncio.Event().wait()
                await asyncio.sleep(0)
                yield LlmPiece(text=piece, so_far=replace(NOTHING, output_tokens=index + 1))
            if reply.error is not None:
                raise reply.error
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.append(request.id)
            raise
        tokens = len(request.system.split()) + len(request.user.split())
        yield LlmFinished(
            finish_reason=reply.finish_reason,
            model=NAME,
            input_tokens=tokens,
            output_tokens=len(pieces),
            cached_tokens=tokens if is_cached else 0,
        )

    async def close(self) -> None:
        pass


def _answer(request: LlmRequest) -> str:
    """Returns the last line of the prompt, with a citation of its first passage, if any."""
    first = re.search(r"^\[(\d+)\]", request.user, re.MULTILINE)
    marker = f" [{first[1]}]" if first else ""
    last_line = request.user.rstrip().rpartition("\n")[2]
    return f"{NAME} was asked: {last_line}{marker}"
