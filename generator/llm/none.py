"""No language model: every query is answered with a quote, without a prompt."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from generator.llm.protocol import AnswerForm, LlmEvent, LlmFinished, LlmRequest


class NoLlm:
    """An `LlmEngine` for retrieval only: its check passes, and it is sent nothing."""

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

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Returns none: there is no tokenizer."""
        return ()

    async def tokenize(self, request: LlmRequest) -> tuple[int, ...]:
        """Returns no ids: there is no server to send them to."""
        return ()

    async def prefix(self, request: LlmRequest, passages: int) -> tuple[int, ...]:
        """Returns no ids: there is nothing to warm."""
        return ()

    async def warm(self, request: LlmRequest) -> LlmFinished:
        """Is not called."""
        raise AssertionError("without a model, nothing is warmed")

    async def waiting(self) -> int | None:
        """Returns None: there is no server."""
        return None

    def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        """Is not called."""
        raise AssertionError("without a model, no prompt is sent")

    async def close(self) -> None:
        """See `LlmEngine`."""
