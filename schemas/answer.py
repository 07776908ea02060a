"""The records of `rag.answers.v1` (one terminal answer for each query) and `rag.answers.partial.v1`
(tokens so far).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from schemas.errors import Reason
from schemas.record import Identifier, NonNegative, Record, Source

Status = Literal["ok", "partial", "expired", "shed", "failed"]
Stage = Literal["client", "grouper", "searcher", "generator"]
ErrorType = Reason | Literal["conflict", "expired", "shed", "llm_refused", "index_damaged"]


class Citation(Record, frozen=True, kw_only=True):
    """A passage that the answer cites: `n` as the model wrote it, `start` and `end` the characters
    of the marker `[n]`.
    """

    n: Annotated[int, msgspec.Meta(ge=1)]
    doc_id: str
    title: str = ""
    start: NonNegative | None = None
    end: NonNegative | None = None
    score: float | None = None
    used: bool = True


class Retrieved(Record, frozen=True, kw_only=True):
    """A passage that was given to the model, cited or not."""

    id: str
    score: float


class Usage(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Tokens as the LLM server counted them; `cached_tokens` of the prompt came out of its prefix
    cache.
    """

    input_tokens: NonNegative = 0
    output_tokens: NonNegative = 0
    cached_tokens: NonNegative = 0


class CacheUse(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Clusters by the tier where this query found them, bytes that it had read, prompt tokens from
    the KV cache.
    """

    gpu: NonNegative = 0
    ram: NonNegative = 0
    ssd: NonNegative = 0
    bytes_read: NonNegative = 0
    kv_hit_tokens: NonNegative = 0


class Provenance(Record, frozen=True, kw_only=True):
    """What the answer was made with, so that it can be explained later."""

    index: str | None = None
    index_version: str | None = None
    embedding_model: str | None = None
    prompt_hash: str | None = None
    software: str | None = None


class AnswerError(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Why a query has no answer, in words for its asker."""

    type: ErrorType
    message: str
    retryable: bool
    stage: Stage


class Answer(Record, frozen=True, kw_only=True):
    """The one terminal answer of an input record. Times in `timings_ms` are milliseconds a stage.

    `replayed`: the answer to an earlier record with this id and `query_digest` (a digest of what
    was asked), given again.
    """

    query_id: Identifier
    status: Status
    is_final: bool
    replayed: bool
    attempts: NonNegative
    citations: tuple[Citation, ...]
    retrieved: tuple[Retrieved, ...]
    source: Source | None = None
    query_digest: Identifier | None = None
    generation_id: Identifier | None = None
    answer: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None
    timings_ms: dict[str, float] = msgspec.field(default_factory=dict)
    cache: CacheUse | None = None
    provenance: Provenance | None = None
    error: AnswerError | None = None
    cancelled_by: Identifier | None = None


def unanswered(
    *,
    query_id: str,
    status: Status,
    stage: Stage,
    error_type: ErrorType,
    message: str,
    retryable: bool = False,
    source: Source | None = None,
    timings_ms: dict[str, float] | None = None,
) -> Answer:
    """Returns the terminal answer of a query that gets none: refused, failed, shed or expired, with
    the reason in words.
    """
    return Answer(
        query_id=query_id,
        status=status,
        is_final=True,
        replayed=False,
        attempts=1,
        citations=(),
        retrieved=(),
        source=source,
        timings_ms=timings_ms or {},
        error=AnswerError(type=error_type, message=message, retryable=retryable, stage=stage),
    )


class PartialAnswer(Record, frozen=True, kw_only=True, omit_defaults=False):
    """A piece of an answer as it is written; a new `generation_id` discards the text so far. Best
    effort.
    """

    query_id: Identifier
    generation_id: Identifier
    seq: NonNegative
    text: str
