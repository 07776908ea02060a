"""A query that the generator works on: its prompt, its progress, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from carpool.loop.stage import Done, QueryFailure, Unit
from generator.llm.protocol import LlmFinished, PromptRefused
from generator.plan.answer_text import Written
from generator.prompts import PreparedPrompt
from schemas.answer import Answer, ErrorType
from schemas.retrieval import Retrieval


@dataclass(kw_only=True, slots=True)
class QueryProgress:
    """The requests of a query so far. Times are epoch microseconds; None: it did not happen.

    `sent_us` and `first_token_us` are those of the last request, `trouble` is why the last one that
    failed did.
    """

    arrived_us: int
    attempts: int = 0
    sent_us: int | None = None
    first_token_us: int | None = None
    trouble: str | None = None


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The result of one request."""

    generation_id: str
    written: Written
    finished: LlmFinished


class Answered(NamedTuple):
    """An answer, and the finished work that it is handed over as."""

    answer: Answer
    done: Done


@dataclass(kw_only=True, slots=True)
class QueryInProgress:
    """A query in progress. `server` and `outcome` are those of its last request.

    `prompt_key`: None if its answer is not given again to equal prompts. `token_ids`: its
    prompt; empty while they are not known, and where text is sent.
    """

    unit: Unit[Retrieval]
    prepared: PreparedPrompt
    progress: QueryProgress
    prompt_key: str | None = None
    token_ids: tuple[int, ...] = ()
    server: int = 0
    outcome: Answered | PromptRefused | None = None


def query_failure(
    retrieval: Retrieval,
    error_type: ErrorType,
    message: str,
    *,
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
        is_transient=False,  # its tries are over, here and in all
        is_refusal=is_refusal,
    )


def deadline_us_of(retrieval: Retrieval) -> int | None:
    """Returns the deadline in epoch microseconds: the grouper's, else the published one."""
    if retrieval.deadline_us is None and retrieval.query.deadline is not None:
        return retrieval.query.deadline * 1_000
    return retrieval.deadline_us
