"""A query that the generator works on: its prompt, its progress, and its result."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.loop.stage import QueryFailure, Unit
from generator.llm.protocol import LlmFinished, PromptRefused
from generator.plan.answer_text import Written
from generator.prompts import PreparedPrompt
from schemas.answer import ErrorType
from schemas.retrieval import Retrieval


@dataclass(kw_only=True, slots=True)
class QueryProgress:
    """The requests of a query so far. Times are epoch microseconds; None: it did not happen.

    `sent_us` and `first_token_us` are those of the last request.
    """

    arrived_us: int
    attempts: int = 0
    sent_us: int | None = None
    first_token_us: int | None = None


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The result of one request."""

    generation_id: str
    written: Written
    finished: LlmFinished


@dataclass(kw_only=True, slots=True)
class QueryInProgress:
    """A query in progress. Of its last request: `server`, `outcome`, and `trouble`, why one failed.

    `prompt_key`: None if its answer is not given again to equal prompts. `token_ids`: its
    prompt; empty while they are not known, and where text is sent.
    """

    unit: Unit[Retrieval]
    prepared: PreparedPrompt
    progress: QueryProgress
    prompt_key: str | None = None
    token_ids: tuple[int, ...] = ()
    server: int = 0
    outcome: Generated | PromptRefused | None = None
    trouble: str | None = None


def query_failure(
    retrieval: Retrieval,
    error_type: ErrorType,
    message: str,
    *,
    is_transient: bool = False,
    is_refusal: bool = False,
) -> QueryFailure:
    """Returns the failure of a query, for its retry or its dead letter."""
    return QueryFailure(
        query=retrieval.query,
        source=retrieval.source,
        headers=retrieval.headers,
        deadline_us=deadline_us_of(retrieval),
        error_type=error_type,
        message=message,
        is_transient=is_transient,
        is_refusal=is_refusal,
    )


def deadline_us_of(retrieval: Retrieval) -> int | None:
    """Returns the deadline in epoch microseconds: the grouper's, else the published one."""
    if retrieval.deadline_us is None and retrieval.query.deadline is not None:
        return retrieval.query.deadline * 1_000
    return retrieval.deadline_us
