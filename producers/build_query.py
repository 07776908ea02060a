"""Builds, checks and encodes the record of a question, and the one that withdraws it."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, Unpack

from carpool.workflow.graph import program_of
from carpool.workflow.steps import WorkflowError
from producers.match_answers import Place
from schemas.cancel import Cancel
from schemas.codec import decode, encode
from schemas.errors import RecordError
from schemas.headers import TENANT_HEADER
from schemas.query import QUERY_BYTES_MAX, EarlierMessage, Generation, Query, check_query
from schemas.record import Headers, Record, Source, well_formed
from schemas.topics import CANCELS, QUERIES, QUERIES_BATCH, Topic
from schemas.workflow import InlineWorkflow

SOURCE_NAME = "urn:carpool:client"


Vector = bytes | Iterable[float]
Priority = int | Literal["batch"]


class HasPosition(Protocol):
    """A change of a document, such as `Put`."""

    @property
    def position(self) -> Mapping[int, int]:
        """The position of a search that sees it."""
        ...


class QuestionArgs(TypedDict, total=False):
    """The optional fields of a question, without its text; the services have the defaults.

    `vector`: (dim,) float32, L2-normalised, as little-endian bytes or as numbers, with the
    fingerprint of its `embedding_model`. `query_id`: by default a new UUIDv4. `priority`: lower is
    sooner; "batch" uses a topic of lower priority. `tenant`: see the header `rag-tenant`.
    `headers`: traceparent, tracestate, correlation_id and reply_to are copied to the answer.
    `workflow`: the name of a program, or a graph as in JSON: `nodes` and `edges`. `after`: what
    `put` or `delete` of a client returned, one or several: they are searched, too. `fetch`: the ids
    of documents or passages to fetch, instead of a question. `instructions`: more of the model's
    task. `messages`: the conversation before the question, for a `workflow` that takes it.
    `passages`: whether the answer has the texts of what was found; not with "batch".
    """

    vector: Vector | None
    embedding_model: str | None
    query_id: str | None
    top_k: int | None
    nprobe: int | None
    priority: Priority
    tenant: str | None
    conversation_id: str | None
    generation: Generation | None
    workflow: str | Mapping[str, Any] | None
    headers: Mapping[str, str] | None
    after: HasPosition | Iterable[HasPosition] | None
    fetch: Sequence[str]
    instructions: str | None
    messages: Sequence[EarlierMessage]
    passages: bool


@dataclass(frozen=True, kw_only=True)
class QueryRecord:
    """The record of a query, a batch or a document; `query_id` is its key. A null value deletes."""

    topic: str
    query_id: str
    value: bytes | None
    headers: Headers


def packed(
    topic: Topic, key: str, record: Record, event_id: str, now_us: int, source: str = SOURCE_NAME
) -> QueryRecord:
    """Returns a record, encoded; see `encode`."""
    value, headers = encode(record, event_id=event_id, source=source, time_us=now_us)
    return QueryRecord(topic=topic.name, query_id=key, value=value, headers=headers)


def build_record(
    text: str | None,
    *,
    deadline_ms: int | None = None,
    now_us: int,
    **question: Unpack[QuestionArgs],
) -> QueryRecord:
    """Returns the record of a question; `deadline_ms` is in epoch milliseconds.

    Half of a surrogate pair in the text becomes U+FFFD. Raises `RecordError` that names the field
    for a question that the services refuse, `TypeError` for a name not in `QuestionArgs`.
    """
    if unknown := sorted(set(question) - QuestionArgs.__annotations__.keys()):
        raise TypeError(f"a question has no {', '.join(unknown)}")
    if question.get("passages") and question.get("priority") == "batch":
        why = "passages: answers of batches have none; fetch them by the ids in `retrieved`"
        raise RecordError("unsupported", why, field="$.passages")
    query_id, vector = question.get("query_id"), question.get("vector")
    priority = question.get("priority", 0)
    query = Query(
        query_id=query_id if query_id is not None else str(uuid.uuid4()),
        text=well_formed(text) if isinstance(text, str) else text,
        vector=vector if vector is None or isinstance(vector, bytes) else pack_vector(vector),
        embedding_model=question.get("embedding_model"),
        top_k=question.get("top_k"),
        nprobe=question.get("nprobe"),
        deadline=deadline_ms,
        priority=0 if priority == "batch" else priority,
        conversation_id=question.get("conversation_id"),
        generation=question.get("generation"),
        workflow=_as_in_record(question.get("workflow")),
        bound=_bound(question.get("after")),
        fetch=tuple(question.get("fetch", ())),
        instructions=question.get("instructions"),
        messages=tuple(question.get("messages", ())),
        passages=question.get("passages", False),
    )
    value, headers = _encoded(query, question, now_us)
    # The grouper decodes it in the same way: bad values are found before the record is sent.
    query = decode(Query, value, headers)
    check_query(query)
    _check_graph(query)
    topic = QUERIES_BATCH if priority == "batch" else QUERIES
    return QueryRecord(topic=topic.name, query_id=query.query_id, value=value, headers=headers)


def _encoded(query: Query, question: QuestionArgs, now_us: int) -> tuple[bytes, Headers]:
    """Returns value and headers of the record. Raises `RecordError` where it is too large."""
    passed_on: Headers = tuple(
        (name, well_formed(text).encode()) for name, text in (question.get("headers") or {}).items()
    )
    value, headers = encode(
        query, event_id=query.query_id, source=SOURCE_NAME, time_us=now_us, passed_on=passed_on
    )
    if len(value) > QUERY_BYTES_MAX:
        what = f"the question is {len(value)} bytes as a record; at most {QUERY_BYTES_MAX} are sent"
        raise RecordError("too_large", f"{what}: shorten its text", field="$")
    if (tenant := question.get("tenant")) is not None:
        headers += ((TENANT_HEADER, well_formed(tenant).encode()),)
    return value, headers


def _bound(after: HasPosition | Iterable[HasPosition] | None) -> dict[int, int] | None:
    """Returns the least position that has all these changes."""
    if after is None:
        return None
    bound: dict[int, int] = {}
    for each in after if isinstance(after, Iterable) else (after,):
        for partition, offset in each.position.items():
            bound[partition] = max(offset, bound.get(partition, offset))
    return bound or None


def _as_in_record(workflow: str | Mapping[str, Any] | None) -> Any:
    """Returns a workflow in the form of a query; its types are checked when it is decoded."""
    if isinstance(workflow, Mapping) and "graph" not in workflow:
        return {"graph": workflow}
    return workflow


def _check_graph(query: Query) -> None:
    if isinstance(query.workflow, InlineWorkflow):
        try:
            program_of(query.workflow.graph)
        except WorkflowError as error:
            raise RecordError("invalid_value", f"workflow: {error}", field="$.workflow") from None


def source_of(question: QueryRecord, place: Place | None) -> Source | None:
    """Returns how answers name a published question. `place`: partition and offset, if known."""
    if place is None:
        return None
    return Source(topic=question.topic, partition=place[0], offset=place[1])


def build_cancel(query_id: str, source: Source | None, now_us: int) -> QueryRecord:
    """Returns the record that withdraws `source`, or all questions with this id so far.

    Raises `RecordError` for an id that no question can have.
    """
    cancel = Cancel(query_id=query_id, source=source)
    record = packed(CANCELS, query_id, cancel, f"{query_id}/cancel", now_us)
    decode(Cancel, record.value, record.headers)
    return record


def pack_vector(values: Iterable[float]) -> bytes:
    """Returns numbers as little-endian float32. Raises `RecordError` for others."""
    try:
        numbers = [float(value) for value in values]
        return struct.pack(f"<{len(numbers)}f", *numbers)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise RecordError("wrong_type", f"vector: {error}", field="$.vector") from None
