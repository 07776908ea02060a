"""The errors of a server with OpenAI's API, sorted by what the caller must do."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from carpool.terminal import without_password
from generator.llm.http_client import NO_CONNECTION, StatusError
from generator.llm.protocol import LlmRefusal, PromptRefused, RefusalKind
from generator.llm.server_events import ServerError, WrongPage
from schemas.record import well_formed

_DETAIL_CHARS_MAX = 300
_WAIT_S_MAX = 86_400.0
BUSY = (429, 503)
"""Statuses of a server that takes no more work now."""
_FOR_NOW: dict[int, tuple[RefusalKind, str]] = {
    **dict.fromkeys(BUSY, ("busy", "it takes no more work now")),
    **dict.fromkeys((502, 504), ("gateway", "a proxy does not reach it")),
    **dict.fromkeys((409, 425), ("misfit", "it refuses a request for now")),
    408: ("timeout", "it gave up on the request"),
}
"""Statuses after which a server may take the same request."""
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
    detail = without_password(well_formed(f"{type(error).__name__}: {error}"))[:_DETAIL_CHARS_MAX]
    if isinstance(error, WrongPage):
        return LlmRefusal("misfit", f"it answers {error}: is base_url right?")
    if isinstance(error, NO_CONNECTION):
        return LlmRefusal(
            "unreachable",
            f"it cannot be reached ({detail}); is it running, and is base_url right?",
        )
    if isinstance(error, TimeoutError):
        return LlmRefusal(
            "timeout",
            f"it sent nothing more of {what}; it hangs or is overloaded (the timeouts are "
            "llm.*_timeout_s)",
        )
    if isinstance(error, StatusError):
        headers, status = error.headers, error.status
        if 300 <= status < 400:
            to = without_password(well_formed(headers.get("location", "nowhere")))
            return LlmRefusal("misfit", f"base_url answers with a redirect to {to}")
        said = one_line(str(error))
        return _refusal(said, status, model, has_answered, retry_after(headers))
    if isinstance(error, ServerError):  # it took the form of the request: it refuses the prompt
        said = one_line(str(error))
        return _refusal(said, error.status, model, has_answered=True)
    return LlmRefusal("broken", f"it failed during {what}, or violated its protocol ({detail})")


def _refusal(
    said: str, status: int, model: str, has_answered: bool, retry_after_s: float | None = None
) -> LlmRefusal | PromptRefused:
    detail = f"HTTP {status}: {said}"
    if status in (401, 403, 407):
        return LlmRefusal("forbidden", f"it refuses the key ({detail}); set CARPOOL_LLM_API_KEY")
    if status == 404:
        return LlmRefusal(
            "model_missing",
            f"it has no model {model!r} ({detail}); set llm.model to one that it lists",
        )
    if status in _FOR_NOW or status >= 500:
        kind, why = _FOR_NOW.get(status, ("broken", "it failed"))
        return LlmRefusal(kind, f"{why} ({detail})", retry_after_s=retry_after_s)
    if has_answered or is_too_long(detail):
        return PromptRefused(f"the LLM server refuses this prompt ({detail})")
    return LlmRefusal(
        "misfit",
        f"it refuses a request, and has answered none so far ({detail}): does it know "
        "llm.extra_body, and `priority` if llm.sends_priority is on?",
    )


def is_too_long(detail: str) -> bool:
    """Returns whether the message says that the prompt exceeds the model's context."""
    return any(words in detail.lower() for words in _TOO_LONG)


def one_line(message: str) -> str:
    """Returns what a server says, in one line and cut off."""
    return " ".join(well_formed(message).split())[:_DETAIL_CHARS_MAX]


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the wait in the headers: milliseconds, seconds, or a date by the server's clock."""
    for name, units_a_second in (("retry-after-ms", 1_000), ("retry-after", 1)):
        try:
            return min(_WAIT_S_MAX, max(0.0, float(headers[name]) / units_a_second))
        except (KeyError, ValueError):
            continue
    try:
        wait = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(
            headers["date"]
        )
    except (KeyError, ValueError, TypeError):
        return None
    return min(_WAIT_S_MAX, max(0.0, wait.total_seconds()))
