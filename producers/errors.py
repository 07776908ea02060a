"""The errors of the client; each message says what happened and what to do."""

from __future__ import annotations

from carpool.errors import CarpoolError, RetryableError
from producers.match_answers import Place
from schemas.answer import Answer


class AnswerTimeout(RetryableError):
    """No answer came in time. The question is published, and may still be answered."""

    def __init__(self, query_id: str, timeout_s: float, place: Place | None, why: str = "") -> None:
        where = f"partition {place[0]}, offset {place[1]}" if place else "not acknowledged yet"
        super().__init__(
            f"no answer to query {query_id} within {timeout_s:g} s.{why} The question is in "
            f"rag.queries.v1 ({where}); its deadline has passed, so the services drop it or answer "
            "`expired`. `carpool status` shows which service is down or lags; ask again with a "
            "longer timeout."
        )
        self.query_id = query_id
        self.timeout_s = timeout_s


class PublishError(RetryableError):
    """The brokers did not acknowledge a question; to publish it again gives no second answer.

    `is_final`: the next one will fail, too, until something is changed.
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class AnswerFailed(CarpoolError):
    """The terminal answer is not `ok`. `retryable`: whether another try may help."""

    def __init__(self, answer: Answer) -> None:
        why = answer.error.message if answer.error is not None else "no reason was given"
        super().__init__(f"query {answer.query_id} ended as {answer.status}: {why}")
        self.answer = answer
        self.retryable = answer.error is not None and answer.error.retryable


def raise_for_status(answer: Answer) -> Answer:
    """Returns an `ok` or `partial` answer. Raises `AnswerFailed` for any other."""
    if answer.status not in ("ok", "partial"):
        raise AnswerFailed(answer)
    return answer
