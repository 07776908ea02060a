"""What an LLM server takes: found out at its check, and learned from what it refuses.

OpenAI's API has dialects: vLLM takes token ids, and OpenAI's newer models refuse `max_tokens`.
Nothing here costs a prompt: a request that a server refuses is sent again in the form that its
message asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from generator.llm.protocol import LlmRequest
from generator.settings import LlmSettings

_OPTIONAL = ("temperature", "seed", "stream_options")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """What a server takes. `vllm_version` None: it is not vLLM.

    `takes_ids`: prompts of token ids. `left_out`: the names of fields that the server refuses.
    """

    vllm_version: str | None = None
    takes_ids: bool = False
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    left_out: frozenset[str] = frozenset()


def after_refusal(facts: ServerFacts, message: str) -> ServerFacts | None:
    """Returns the facts after a refusal with this message; None if it says nothing about them.

    Each refusal takes something away, so there are few in a row.
    """
    words = message.lower()
    if "max_completion_tokens" in words and facts.max_tokens_field == "max_tokens":
        return replace(facts, max_tokens_field="max_completion_tokens")
    for name in _OPTIONAL:
        if name in words and name not in facts.left_out:
            return replace(facts, left_out=facts.left_out | {name})
    return None


def request_body(
    request: LlmRequest, facts: ServerFacts, ids: tuple[int, ...], settings: LlmSettings
) -> dict[str, Any]:
    """Returns the fields of a request for an answer to a prompt: its `ids`, or else its text."""
    is_vllm = facts.vllm_version is not None
    messages = [
        {"role": "system", "content": request.system},
        {"role": "user", "content": request.user},
    ]
    body: dict[str, Any] = {
        "model": settings.model,
        **({"prompt": ids} if ids else {"messages": messages}),
        "max_tokens" if ids else facts.max_tokens_field: request.max_tokens,
        "temperature": request.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if is_vllm:  # the counts of an answer that is ended early
        body["stream_options"]["continuous_usage_stats"] = True
    if request.seed is not None:
        body["seed"] = request.seed
    priority = {"priority": request.priority} if settings.sends_priority else {}
    known = {name: value for name, value in body.items() if name not in facts.left_out}
    return known | priority | settings.extra_body
