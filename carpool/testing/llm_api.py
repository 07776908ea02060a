"""What the LLM stand-in is asked, what it replies, its faults, and what it counts."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import msgspec


class LlmFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fault of the next `count` requests (None: of all) for a completion.

    `429`, `503`, `500`, `400`: that status, with `retry_after_s`. `hang`: no reply. `reset`: the
    connection is closed. `garbage`: no event stream. The last three begin after `after_tokens`
    tokens. `odd`: a whole answer, among what else servers send, and without a reason to end.
    """

    mode: Literal["none", "400", "429", "500", "503", "hang", "reset", "garbage", "odd"]
    count: int | None = None
    retry_after_s: float | None = None
    after_tokens: int = 0


NO_FAULT = LlmFault(mode="none")
ODD_EVENTS = (
    '{"choices":[]}\n\n: a comment\nid: 7\nretry: 10\nevent: ping',
    '{"choices":[{"index":0,"finish_reason":null}],"usage":null}',
    '{"choices":[{"delta":{"role":"assistant","content":""}}],"model":"\\ud83d"}',
    '{"choices":[],"usage":{"prompt_tokens":null,"completion_tokens":-5,"total_tokens":1e22}}',
)
"""What says nothing of an answer, and what no record can hold."""


class LlmRequests(msgspec.Struct, kw_only=True):
    """Counts of requests for a completion, in all, by header X-Request-Id and by `prompt_hash`.

    `disconnected` counts those that the client ended, `faulted` those that got a fault.
    `in_flight_max` is the most at a time.
    """

    started: int = 0
    completed: int = 0
    disconnected: int = 0
    faulted: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    started_by_id: Counter[str] = msgspec.field(default_factory=Counter)
    completed_by_id: Counter[str] = msgspec.field(default_factory=Counter)
    started_by_prompt: Counter[str] = msgspec.field(default_factory=Counter)
    completed_by_prompt: Counter[str] = msgspec.field(default_factory=Counter)


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The used fields of a request for a completion: `messages`, or `prompt` of /v1/completions."""

    model: str
    messages: list[dict[str, Any]] = []
    prompt: list[int] | str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    priority: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for token ids: of a text, or of a chat."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


def usage_of(prompt_tokens: int, written_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """Returns the counts of tokens of an answer."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written_tokens,
        "total_tokens": prompt_tokens + written_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Reply:
    """The forms of an answer to a chat, or to a prompt, whole or in pieces."""

    def __init__(self, asked: ChatRequest, id: str, usage: dict[str, Any]) -> None:
        self._is_chat, self._usage = asked.prompt is None, {"usage": usage}
        kind = "chat.completion" if self._is_chat else "text_completion"
        self._head = {"id": id, "created": 0, "model": asked.model, "object": kind}
        self._chunk = self._head | ({"object": f"{kind}.chunk"} if self._is_chat else {})

    def whole(self, text: str, finish_reason: str) -> dict[str, Any]:
        """Returns the answer to a request that does not stream."""
        return self._head | self._choices("message", text, finish_reason) | self._usage

    def piece(self, text: str, finish_reason: str | None = None) -> dict[str, Any]:
        """Returns the event of a token, or of the end."""
        return self._chunk | self._choices("delta", text, finish_reason)

    def usage_piece(self) -> dict[str, Any]:
        """Returns the event that has the counts of tokens."""
        return self._chunk | {"choices": []} | self._usage

    def _choices(self, field: str, text: str, finish_reason: str | None) -> dict[str, Any]:
        said = {field: {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        return {"choices": [{"index": 0, **said, "finish_reason": finish_reason}]}
