"""The errors of OpenAI's client, sorted by what the caller must do."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import openai

from carpool.terminal import without_password
from generator.llm.protocol import LlmRefusal, PromptRefused
from generator.llm.server_stream import StreamError, well_formed

_DETAIL_CHARS_MAX = 300
_NO_CONNECTION = (
    "ConnectError",
    "ConnectTimeout",
    "PoolTimeout",
    "ProxyError",
    "UnsupportedProtocol",
)
"""Errors of the client's HTTP library: httpx or httpx2, after its version."""
BUSY = (409, 425, 429, 503)
"""Statuses of a server that takes no more work now."""
_TOO_LONG = (
    "maximum context length",
    "context_length_exceeded",
    "max_model_len",
    "longer than the maximum",
    "too long",
    "available context size",
)


def failure(
    error: Exception, what: str, *, model: str, has_answered: bool
) -> LlmRefusal | PromptRefused:
    """Sorts an error of the client into a refusal of the server or of the prompt.

    `what` was asked for. A server that `has_answered` refuses a prompt, not the settings.
    """
    cause = error.__cause__ or error
    detail = without_password(f"{type(cause).__name__}: {cause}")[:_DETAIL_CHARS_MAX]
    if type(cause).__name__ in _NO_CONNECTION:
        return LlmRefusal(
            "unreachable",
            f"it cannot be reached ({detail}); is it running, and is base_url right?",
        )
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return LlmRefusal(
            "timeout",
            f"it sent nothing more of {what}; it hangs or is overloaded (the timeouts are "
            "llm.*_timeout_s)",
        )
    if isinstance(error, StreamError):
        return _refusal(error.status, well_formed(str(error)), {}, model, has_answered)
    if isinstance(error, openai.APIStatusError):
        headers = error.response.headers
        if 300 <= error.status_code < 400:
            place = without_password(headers.get("location", "another address"))
            return LlmRefusal(
                "unreachable",
                f"base_url answers with a redirect to {place[:_DETAIL_CHARS_MAX]}, which is not "
                "followed; set llm.base_url to the server itself",
            )
        return _refusal(error.status_code, detail_of(error), headers, model, has_answered)
    return LlmRefusal("broken", f"it failed during {what}, or violated its protocol ({detail})")


def _refusal(
    status: int, said: str, headers: Mapping[str, str], model: str, has_answered: bool
) -> LlmRefusal | PromptRefused:
    detail = f"HTTP {status}: {' '.join(said.split())[:_DETAIL_CHARS_MAX]}"
    retry_after_s = retry_after(headers)
    if status in BUSY:
        return LlmRefusal(
            "busy", f"it takes no more work now ({detail})", retry_after_s=retry_after_s
        )
    if status in (401, 403, 407):
        return LlmRefusal("forbidden", f"it refuses the key ({detail}); set CARPOOL_LLM_API_KEY")
    if status == 404:
        return LlmRefusal(
            "model_missing",
            f"it has no model {model!r} ({detail}); set llm.model to one that it lists",
        )
    if status == 408:
        return LlmRefusal(
            "timeout", f"it gave up on the request ({detail})", retry_after_s=retry_after_s
        )
    if status in (502, 504):
        return LlmRefusal(
            "unreachable", f"a proxy does not reach it ({detail})", retry_after_s=retry_after_s
        )
    if status >= 500:
        return LlmRefusal("broken", f"it failed ({detail})", retry_after_s=retry_after_s)
    if has_answered or is_too_long(detail):
        return PromptRefused(f"the LLM server refuses this prompt ({detail})")
    return LlmRefusal(
        "misfit",
        f"it refuses a request, and has answered none so far ({detail}): does it know "
        "llm.answer_form, llm.extra_body, and `priority` if llm.sends_priority is on?",
    )


def is_too_long(detail: str) -> bool:
    """Returns whether the message says that the prompt exceeds the model's context."""
    return any(words in detail.lower() for words in _TOO_LONG)


def detail_of(error: openai.APIStatusError) -> str:
    """Returns the server's message, in one line."""
    body = error.body
    message = body.get("message") if isinstance(body, dict) else body
    return well_formed(" ".join(str(message or error.message).split()))[:_DETAIL_CHARS_MAX]


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the wait in the headers: milliseconds, seconds, or a date by the server's clock."""
    for name, units_a_second in (("retry-after-ms", 1_000), ("retry-after", 1)):
        try:
            return max(0.0, float(headers[name]) / units_a_second)
        except (KeyError, ValueError):
            continue
    try:
        wait = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(
            headers["date"]
        )
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, wait.total_seconds())
