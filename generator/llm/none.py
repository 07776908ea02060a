"""No language model: every query is answered with a fixed text and the passages found."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from generator.llm.protocol import AnswerForm, LlmEvent, LlmFinished, LlmPiece, LlmRequest

TEXT = (
    '{"answer":"No language model is used here (llm.engine is none); these are the passages '
    'that were found.","citations":[]}'
)


class NoLlm:
    """An `LlmEngine` for retrieval only. Never refuses, never waits, counts no tokens."""

    @property
    def address(self) -> str:
        """See `LlmEngine`."""
        return "no LLM server (llm.engine is none)"

    @property
    def form(self) -> AnswerForm:
        """See `LlmEngine`."""
        return "json"

    async def check(self) -> None:
        """See `LlmEngine`."""

    async def tokenize(self, request: LlmRequest) -> tuple[int, ...]:
        """Returns no ids: there is no server to send them to."""
        return ()

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        """See `LlmEngine`."""
        yield LlmPiece(text=TEXT)
        yield LlmFinished(
            finish_reason="stop", model="none", input_tokens=0, output_tokens=0, cached_tokens=0
        )

    async def close(self) -> None:
        """See `LlmEngine`."""
