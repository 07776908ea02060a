"""What a searched query becomes on the wire: its final retrieval, or the terminal answer that says why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.disk.documents import Document
from carpool.kafka.stage import Output
from schemas.answer import ErrorType, Status, unanswered
from schemas.codec import encode
from schemas.group import Group, GroupedQuery
from schemas.record import ClusterId, Headers
from schemas.retrieval import Hit, Retrieval
from schemas.topics import ANSWERS, RETRIEVALS
from searcher.execution import Found

SOURCE = "carpool/searcher"
FRAME_BYTES = 1024
"""What a broker counts beside key, value and headers: lengths, the frame of the batch; generous."""


def retrieval_of(
    group: Group,
    grouped: GroupedQuery,
    found: Found,
    documents: Sequence[Document],
    timings_us: dict[str, int],
    now_us: int,
) -> Retrieval:
    """Returns the final retrieval of a query. `documents` are those of `found.best`, in its order."""
    ranked = zip(documents, found.best.scores.tolist(), found.best.clusters.tolist(), strict=True)
    return Retrieval(
        query=grouped.query,
        source=grouped.source,
        headers=grouped.headers,
        deadline_us=grouped.deadline_us,
        revision=1,
        is_final=True,
        index_version=group.index_version,
        embedding_model=group.embedding_model,
        hits=tuple(
            Hit(
                doc_id=document.doc_id,
                score=score,
                cluster=ClusterId(cluster),
                title=document.title,
                text=document.text,
            )
            for document, score, cluster in ranked
        ),
        skipped_clusters=found.skipped,
        probes=found.probes,
        bytes_read=found.bytes_read,
        timings_us=timings_us,
        batch_size=len(group.queries),
        completed_us=now_us,
    )


def retrieval_output(retrieval: Retrieval) -> Output:
    """Returns the record of a retrieval; its id is the same however often the query is searched."""
    value, headers = encode(
        retrieval,
        event_id=event_id(retrieval, "r1"),
        source=SOURCE,
        time_us=retrieval.completed_us,
        passed_on=retrieval.headers,
    )
    return Output(topic=RETRIEVALS.name, key=retrieval.query.query_id.encode(), value=value, headers=headers)


def answer_output(
    grouped: GroupedQuery,
    *,
    status: Status,
    error_type: ErrorType,
    message: str,
    retryable: bool,
    timings_us: dict[str, int],
    now_us: int,
) -> Output:
    """Returns the record of the terminal answer of a query that gets no retrieval."""
    answer = unanswered(
        query_id=grouped.query.query_id,
        status=status,
        stage="searcher",
        error_type=error_type,
        message=message,
        retryable=retryable,
        source=grouped.source,
        timings_ms={name: time_us / 1_000 for name, time_us in timings_us.items()},
    )
    value, headers = encode(
        answer, event_id=event_id(grouped, "answer"), source=SOURCE, time_us=now_us, passed_on=grouped.headers
    )
    return Output(topic=ANSWERS.name, key=grouped.query.query_id.encode(), value=value, headers=headers)


def event_id(record: GroupedQuery | Retrieval, what: str) -> str:
    """Returns an id that names this result of this input record for good."""
    source = record.source
    return f"{source.topic}/{source.partition}/{source.offset}/{what}"


def wire_bytes(output: Output) -> int:
    """Returns an upper bound of the bytes that a broker counts for `output`."""
    headers: Headers = output.headers
    sizes = (len(name) + len(value or b"") + 16 for name, value in headers)
    return len(output.key or b"") + len(output.value) + sum(sizes) + FRAME_BYTES
