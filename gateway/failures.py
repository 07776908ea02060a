"""Why a question has no answer, as a status of HTTP."""

from __future__ import annotations

from typing import Any

from carpool.errors import CarpoolError
from schemas.answer import Answer

STATUSES = {
    "conflict": 409,
    "cancelled": 409,
    "expired": 504,
    "stale": 503,
    "shed": 503,
    "llm_refused": 502,
    "index_damaged": 500,
    "processing_failed": 500,
    "workflow_failed": 500,
    "workflow_changed": 503,
    "workflow_limit": 500,
}
"""By the kind of an error; 400 for the others, which are faults of the question."""


class NoAnswer(CarpoolError):
    """A question has no answer. `status` is of HTTP; `retryable`: another try may have one."""

    def __init__(self, status: int, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.status, self.retryable = status, retryable


def failure_of(answer: Answer) -> NoAnswer | None:
    """Returns why a terminal answer has neither text nor documents; None: it has."""
    if answer.status in ("ok", "partial") and (answer.answer is not None or answer.fetched):
        return None
    error = answer.error
    if error is None:
        return NoAnswer(500, f"the question ended as {answer.status}", retryable=False)
    return NoAnswer(STATUSES.get(error.type, 400), error.message, retryable=error.retryable)


def error_body(
    message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str = ""
) -> dict[str, Any]:
    """Returns the body of an error, as the SDK reads it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code or None}}
