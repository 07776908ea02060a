"""No language model: every query is answered with a quote, without a prompt."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from generator.llm.protocol import AnswerForm, LlmEvent, LlmFinished, LlmRequest


class NoLlm:
    """An `LlmEngine` for retrieval only: its check passes, and it is sent nothing."""

    address = "no LLM server (llm.engine is none)"
    form: AnswerForm = "json"
    sample_ids: tuple[int, ...] = ()

    async def check(self) -> None:
        """See `LlmEngine`."""

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

    def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        """Is not called."""
        raise AssertionError("without a model, no prompt is sent")

    async def close(self) -> None:
        """See `LlmEngine`."""
