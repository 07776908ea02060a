"""The records of `rag.answers.v1` (terminal answers) and `rag.answers.partial.v1` (pieces)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from schemas.document import Corpus
from schemas.errors import Reason
from schemas.query import Query
from schemas.record import Identifier, Integer, NonNegative, Real, Record, Source
from schemas.retrieval import Searched

Status = Literal["ok", "partial", "expired", "cancelled", "shed", "failed"]
Stage = Literal["client", "grouper", "searcher", "generator", "indexer"]
ErrorType = (
    Reason
    | Literal["conflict", "expired", "cancelled", "shed", "llm_refused", "index_damaged"]
    | Literal["workflow_failed", "workflow_changed", "workflow_limit", "stale"]
)
STEP_CHARS_MAX = 2_000


class TextSpan(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Characters of a text, from `start` up to `end`."""

    start: NonNegative
    end: NonNegative


class Citation(Record, frozen=True, kw_only=True):
    """A passage that is cited for a sentence of the answer, or for its part up to a marker.

    `by`: `model`, which wrote the marker `[n]` at `answer[start:end]`, or `text`: Carpool found the
    words of the sentence in the passage, and this citation has no marker. None: by the model, in an
    answer of an earlier version. `sentence`: in `answer`; None: it has no words. `quote`: in the
    text of the corpus line, perhaps in a part that the prompt did not show, the sentence that
    supports it, by `support`, from 0 to 1. A passage that the model cites without support has no
    `quote`, and one without text no `support`.

    `snippet`: the text of `quote`; without one, of the passage as it stood in the prompt, the part
    that fits the question. `metadata`: of the line of the corpus, as far as the index stores it;
    `url`: its field of that name, where it is a text.
    """

    n: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    doc_id: str
    by: Literal["model", "text"] | None = None
    title: str = ""
    snippet: str = ""
    url: str | None = None
    metadata: dict[str, Any] | None = None
    start: NonNegative | None = None
    end: NonNegative | None = None
    sentence: TextSpan | None = None
    quote: TextSpan | None = None
    support: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    score: Real | None = None


class Quote(Record, frozen=True, kw_only=True):
    """A sentence of passage `n` of the prompt that Carpool chose; the model has no part in it.

    `text` is `passage[start:end]`, where `passage` is the text of the corpus line.
    """

    n: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    doc_id: str
    start: NonNegative
    end: NonNegative
    text: str
    title: str = ""
    url: str | None = None


class InventedCitation(Record, frozen=True, kw_only=True):
    """A number that the model cited although its prompt had no such passage.

    Its marker is `answer[start:end]`.
    """

    n: Integer
    start: NonNegative | None = None
    end: NonNegative | None = None


class Retrieved(Record, frozen=True, kw_only=True, omit_defaults=False):
    """A passage that was found, best first. `in_prompt`: the model could read it."""

    id: str
    score: Real
    in_prompt: bool = True


class FoundPassage(Record, frozen=True, kw_only=True):
    """A passage that was found, with its text; `metadata` as far as the index stores it."""

    id: str
    text: str
    title: str = ""
    score: Real = 0.0
    metadata: dict[str, Any] | None = None


class StepDone(Record, frozen=True, kw_only=True, omit_defaults=False):
    """A finished step of a workflow. `n`: the number of its round, from 1.

    `text`: what was searched, or what the model wrote, its first `STEP_CHARS_MAX` characters.
    `tokens` counts what the model wrote. `doc_ids` and `titles` are those of what was found.
    `left_out` has the ids of passages that the program gave and the prompt did not show.
    """

    n: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    kind: Literal["retrieve", "generate"]
    text: str
    ms: Real = 0.0
    tokens: NonNegative = 0
    doc_ids: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Usage(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Tokens, counted by the LLM server: those of all prompts of a workflow together.

    Of the `input_tokens`, `cached_tokens` came from its prefix cache, and it computed the others.
    Warm-ups computed `warmed_tokens` of the cached ones while the search still ran, and
    `warmed_in_vain_tokens` that are not part of the prompt. `reused_tokens`: input and output of
    the earlier answer that this one repeats; of a replayed answer the others are 0.
    """

    input_tokens: NonNegative = 0
    output_tokens: NonNegative = 0
    cached_tokens: NonNegative = 0
    reused_tokens: NonNegative = 0
    warmed_tokens: NonNegative = 0
    warmed_in_vain_tokens: NonNegative = 0


class CacheUse(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Clusters by the tier where they were, bytes read, and prompt tokens from the KV cache."""

    gpu: NonNegative = 0
    ram: NonNegative = 0
    ssd: NonNegative = 0
    bytes_read: NonNegative = 0
    kv_hit_tokens: NonNegative = 0


class Provenance(Record, frozen=True, kw_only=True):
    """The versions of index, models, prompt and software that made the answer."""

    index_version: str | None = None
    embedding_model: str | None = None
    prompt_hash: str | None = None
    software: str | None = None


class FetchedPassage(Record, frozen=True, kw_only=True, omit_defaults=False):
    """A passage of a document. `n`: its number in the document, from 1."""

    n: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    text: str
    title: str = ""


class Fetched(Record, frozen=True, kw_only=True, omit_defaults=False):
    """A document that was fetched by `id`, which has `count` passages; 0: there is none.

    All of them, or the one that was asked for and its neighbours.
    """

    id: str
    count: NonNegative
    metadata: dict[str, Any] | None = None
    passages: tuple[FetchedPassage, ...] = ()


class AnswerError(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Why a query has no answer, or not a complete one."""

    type: ErrorType
    message: str
    retryable: bool
    stage: Stage


class Answer(Record, frozen=True, kw_only=True):
    """The one terminal answer of an input record. `timings_ms`: milliseconds by stage.

    `source`: the record that the application published: topic, partition and offset are those of
    the producer's delivery report; the topic is named without `kafka.prefix`. `grounded`: a passage
    supports a sentence of the answer; False also where the answer says that the passages do not
    hold it; None: there is no answer, or it is of an earlier version, or the last text of a
    workflow that came to a limit. `quotes`: what Carpool chose from the passages by the question,
    apart from answer and citations. `replayed`: it repeats the answer to an earlier record, with
    this id and `query_digest`, a digest of the question, or with this `prompt_key`, a digest of all
    that decides the model's answer. `steps`: what a workflow did before its answer. `status` `shed`
    is reserved for a service that refuses work when it has too much; no service writes it.
    `corpus`: what was searched; None: the index alone, or nothing. `fetched`: the documents that
    the query fetched, one for each of its ids. `passages`: what was found, where the query asks for
    it, in the order of `retrieved`, as far as the record has room.
    """

    query_id: Identifier
    status: Status
    is_final: bool
    replayed: bool
    attempts: NonNegative
    citations: tuple[Citation, ...]
    retrieved: tuple[Retrieved, ...]
    grounded: bool | None = None
    invented_citations: tuple[InventedCitation, ...] = ()
    quotes: tuple[Quote, ...] = ()
    steps: tuple[StepDone, ...] = ()
    source: Source | None = None
    query_digest: Identifier | None = None
    prompt_key: Identifier | None = None
    corpus: Corpus | None = None
    fetched: tuple[Fetched, ...] = ()
    passages: tuple[FoundPassage, ...] = ()
    generation_id: Identifier | None = None
    answer: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None
    timings_ms: dict[str, Real] = msgspec.field(default_factory=dict)
    search: Searched | None = None
    cache: CacheUse | None = None
    provenance: Provenance | None = None
    error: AnswerError | None = None


def steps_done(query: Query) -> tuple[StepDone, ...]:
    """Returns the finished steps of a workflow; none of another query."""
    rounds = () if query.journal is None else query.journal.rounds
    return tuple(
        StepDone(
            n=number,
            kind="generate" if result.hits is None else "retrieve",
            text=result.text[:STEP_CHARS_MAX],
            ms=result.took_ms,
            tokens=result.output_tokens,
            doc_ids=tuple(hit.doc_id for hit in result.hits or ()),
            titles=tuple(hit.title for hit in result.hits or ()),
            left_out=result.left_out,
        )
        for number, round in enumerate(rounds, start=1)
        for result in round
    )


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
    attempts: int = 1,
    query: Query | None = None,
) -> Answer:
    """Returns the terminal answer of a query that was refused, late or withdrawn, or failed.

    `query` has the steps of a workflow.
    """
    return Answer(
        query_id=query_id,
        status=status,
        is_final=True,
        replayed=False,
        attempts=attempts,
        citations=(),
        retrieved=(),
        source=source,
        timings_ms=timings_ms or {},
        steps=() if query is None else steps_done(query),
        error=AnswerError(type=error_type, message=message, retryable=retryable, stage=stage),
    )


class PartialAnswer(Record, frozen=True, kw_only=True):
    """A piece of an answer; a new `generation_id` discards the text so far. Best effort.

    With `step` it is no piece of the answer: a step of the workflow has finished, `text` is empty,
    and `seq` counts the steps from 0.
    """

    query_id: Identifier
    generation_id: Identifier
    seq: NonNegative
    text: str
    step: StepDone | None = None
