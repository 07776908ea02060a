"""The record of `rag.batches.v1`, and the lines of a batch's output."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from schemas.answer import AnswerError, Citation, Quote, Retrieved, Status, Usage
from schemas.query import TopK
from schemas.record import Count, Identifier, NonNegative, Real, Record

State = Literal["running", "stopped", "done", "cancelled"]
"""`stopped`: by its user, or by an error; the same command goes on."""


HowEnded = Literal["completed", "failed", "expired", "cancelled"]


class BatchFile(Record, frozen=True, kw_only=True):
    """The file of a batch. `questions` and `refused`: lines that are, and cannot be, asked."""

    name: str
    sha256: str
    size_bytes: NonNegative
    lines: Count
    questions: Count
    refused: Count = 0


class BatchOptions(Record, frozen=True, kw_only=True):
    """The options that change an answer; they win over those of a line.

    `workflow`: the name of a program, or a graph. `tenant`: as the header `rag-tenant`. `models`:
    the names that a line of OpenAI's may give; None: any.
    """

    workflow: str | dict[str, Any] | None = None
    model: Identifier | None = None
    top_k: TopK | None = None
    max_tokens: NonNegative | None = None
    tenant: Identifier | None = None
    models: tuple[Identifier, ...] | None = None


class Round(Record, frozen=True, kw_only=True):
    """Lines whose answer has one of `statuses`, before the offset `ends[partition]`, are asked
    again.
    """

    statuses: tuple[Status, ...]
    ends: tuple[NonNegative, ...]


class BatchRequest(Record, frozen=True, kw_only=True):
    """What a batch of `/v1/batches` has in addition. `owner`: who may read and cancel it.

    `is_cancelled`: by its owner; its runner follows. `ended`: how, and `ended_ms`: when, in epoch
    milliseconds; then it has files of answers and of errors, each if it has any. `failure`: why it
    could not be run.
    """

    owner: Identifier
    endpoint: str
    input_file_id: Identifier
    metadata: dict[str, str] | None = None
    is_cancelled: bool = False
    ended: HowEnded | None = None
    ended_ms: NonNegative = 0
    output_file_id: Identifier | None = None
    error_file_id: Identifier | None = None
    failure: str | None = None


class Batch(Record, frozen=True, kw_only=True):
    """What is known of a batch, without its answers.

    `batch_id`: the digest of file and options, or a UUID of `/v1/batches`. `starts`: the ends of
    the partitions of `rag.answers.v1` when it began, `positions`: up to which its runner has read
    them. `runner`: the process that works on it; None: none does.
    `counts`: lines by the status of their answer. `first_open` and `next_line`: what is in progress
    is between these lines. `request`: of a batch of `/v1/batches`. Times are in epoch milliseconds,
    for people only.
    """

    batch_id: Identifier
    file: BatchFile
    options: BatchOptions
    request: BatchRequest | None = None
    state: State
    starts: tuple[NonNegative, ...]
    positions: tuple[NonNegative, ...] = ()
    created_ms: NonNegative
    updated_ms: NonNegative
    runner: Identifier | None = None
    rounds: tuple[Round, ...] = ()
    counts: dict[str, Count] = msgspec.field(default_factory=dict)
    first_open: Count = 1
    next_line: Count = 1


class AnswerLine(Record, frozen=True, kw_only=True, omit_defaults=False):
    """A line of a batch's output: an answer. Of lines with one `line`, the last one counts.

    `line`: the number of the question's line in the input, from 1; `custom_id` and `question` are
    its own. `index_version`: of the index that was searched. `id`: of the query. `round`: how many
    retries had been asked for. `status` is `refused` only in the ordered output and in the file of
    errors, for a line that cannot be asked.
    """

    line: NonNegative
    status: Status | Literal["refused"]
    custom_id: str | None = None
    question: str | None = None
    answer: str | None = None
    citations: tuple[Citation, ...] = ()
    quotes: tuple[Quote, ...] = ()
    retrieved: tuple[Retrieved, ...] = ()
    grounded: bool | None = None
    finish_reason: str | None = None
    tokens: Usage | None = None
    model: str | None = None
    index_version: str | None = None
    timings_ms: dict[str, Real] = msgspec.field(default_factory=dict)
    error: AnswerError | None = None
    id: str | None = None
    round: NonNegative = 0
