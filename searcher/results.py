"""What a searched query becomes on the wire: its final retrieval, or the terminal answer that says
why there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import structlog

from carpool.clock import Clock
from carpool.disk.documents import Document, DocumentStore
from carpool.errors import CorruptionError, RetryableError
from carpool.kafka.records import Output
from carpool.loop.answers import answer_output
from carpool.loop.retry import attempt_of, later_attempt
from carpool.loop.stage import QueryFailure
from carpool.loop.tracing.operation import Operation
from carpool.telemetry.logs import about
from schemas.answer import ErrorType, Status, unanswered
from schemas.codec import encode
from schemas.group import Group, GroupedQuery
from schemas.query import Query
from schemas.record import ClusterId
from schemas.retrieval import Hit, Retrieval
from schemas.topics import RETRIEVALS, in_class_of
from searcher.executor import SearchResult
from searcher.tracing import retrieval

_log = structlog.get_logger(__name__)

SOURCE = "carpool/searcher"
HEADER_BYTES = 16
"""What a broker counts for a header beside its name and value, at most."""
FRAME_BYTES = 1024
"""What a broker counts beside key, value and headers: lengths, the frame of the batch; generous."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The one record that a query owes. `answered` is None for a retrieval, else the status of the
    terminal answer; `failure` says that it is no fault of the query's, which may be searched again.
    """

    output: Output
    timings_us: dict[str, int]
    answered: Status | None = None
    operations: tuple[Operation, ...] = ()
    failure: QueryFailure | None = None


def finish(
    group: Group,
    part: int,
    found: SearchResult,
    documents: DocumentStore,
    *,
    published_us: int,
    clock: Clock,
) -> Outcome:
    """Returns what the search of query `part` comes to, passages fetched. Blocks for their reads.

    A retrieval; or a `failed` answer where no cluster or no passage could be read, or the record
    would be too large.
    """
    grouped = group.queries[part]
    timings_us = {
        **grouped.timings_us,
        "queue_search": max(0, found.started_us - published_us),
        "load": found.load_us,
        "search": found.search_us,
    }
    if found.errors and len(found.skipped) == len(found.probes) and not len(found.best.rows):
        message = (
            f"none of the {len(found.skipped)} clusters that it probes could be read: "
            f"{found.errors[0]}"
        )
        is_passing = all(isinstance(error, RetryableError) for error in found.errors)
        return _broken(group, grouped, message, is_passing, timings_us, clock.now_us())
    started_us = clock.now_us()
    try:
        passages = documents.get(found.best.rows.tolist())
    except (CorruptionError, OSError) as error:
        where = about(grouped.source, grouped.headers, query_id=grouped.query.query_id)
        _log.error("passages unreadable", error=str(error), **where)
        message = f"its passages were found and could not be read: {error}"
        return _broken(
            group, grouped, message, isinstance(error, OSError), timings_us, clock.now_us()
        )
    now_us = clock.now_us()
    timings_us["passages"] = now_us - started_us
    output = _retrieval_output(_retrieval(group, grouped, found, passages, timings_us, now_us))
    if wire_bytes(output) > RETRIEVALS.max_message_bytes:
        message = (
            f"its {len(passages)} passages make a record of {len(output.value)} bytes, and "
            f"{RETRIEVALS.name} takes {RETRIEVALS.max_message_bytes}; ask for a smaller top_k"
        )
        return _failed(grouped, "too_large", message, False, timings_us, now_us)
    operations = (retrieval(group.index_version, found, len(passages), now_us),)
    return Outcome(output=output, timings_us=timings_us, operations=operations)


def expire(grouped: GroupedQuery, now_us: int) -> Outcome:
    """Returns the terminal answer of a query whose deadline has passed."""
    late_ms = (now_us - (grouped.deadline_us or 0)) / 1_000
    message = (
        f"the deadline passed {late_ms:.0f} ms before the search was done; ask again "
        "with a later one"
    )
    output = _answer_output(
        grouped, "expired", "expired", message, True, grouped.timings_us, now_us
    )
    return Outcome(output=output, timings_us=grouped.timings_us, answered="expired")


def wire_bytes(output: Output) -> int:
    """Returns an upper bound of the bytes that a broker counts for `output`."""
    headers_bytes = sum(
        len(name) + len(value or b"") + HEADER_BYTES for name, value in output.headers
    )
    return len(output.key or b"") + len(output.value) + headers_bytes + FRAME_BYTES


def _retrieval(
    group: Group,
    grouped: GroupedQuery,
    found: SearchResult,
    passages: Sequence[Document],
    timings_us: dict[str, int],
    now_us: int,
) -> Retrieval:
    ranked = zip(passages, found.best.scores.tolist(), found.best.clusters.tolist(), strict=True)
    return Retrieval(
        query=_as_published(group, grouped),
        source=grouped.source,
        headers=grouped.headers,
        deadline_us=grouped.deadline_us,
        revision=1,
        is_final=True,
        index_version=group.index_version,
        embedding_model=group.embedding_model,
        hits=tuple(
            Hit(
                doc_id=doc.doc_id,
                score=score,
                cluster=ClusterId(cluster),
                title=doc.title,
                text=doc.text,
            )
            for doc, score, cluster in ranked
        ),
        skipped_clusters=found.skipped,
        probes=found.probes,
        bytes_read=found.bytes_read,
        timings_us=timings_us,
        batch_size=len(group.queries),
        completed_us=now_us,
    )


def _retrieval_output(retrieval: Retrieval) -> Output:
    value, headers = encode(
        retrieval,
        event_id=f"{retrieval.source.place}/r1{later_attempt(retrieval.headers)}",
        source=SOURCE,
        time_us=retrieval.completed_us,
        passed_on=retrieval.headers,
    )
    topic = in_class_of(retrieval.source.topic, RETRIEVALS)
    return Output(
        topic=topic.name, key=retrieval.query.query_id.encode(), value=value, headers=headers
    )


def _as_published(group: Group, grouped: GroupedQuery) -> Query:
    """The query with its own vector again, which whoever sends it round needs. One that names the
    index's model is given the vector that it was searched by: its own, or one that finds the same
    as its text would.
    """
    if grouped.query.embedding_model != group.embedding_model:
        return grouped.query
    return msgspec.structs.replace(grouped.query, vector=grouped.vector)


def _broken(
    group: Group,
    grouped: GroupedQuery,
    message: str,
    is_passing: bool,
    timings_us: dict[str, int],
    now_us: int,
) -> Outcome:
    outcome = _failed(grouped, "index_damaged", message, is_passing, timings_us, now_us)
    failure = QueryFailure(
        query=_as_published(group, grouped),
        source=grouped.source,
        headers=grouped.headers,
        deadline_us=grouped.deadline_us,
        error_type="index_damaged",
        message=message,
        is_transient=is_passing,
    )
    return replace(outcome, failure=failure)


def _failed(
    grouped: GroupedQuery,
    kind: ErrorType,
    message: str,
    retryable: bool,
    timings_us: dict[str, int],
    now_us: int,
) -> Outcome:
    output = _answer_output(grouped, "failed", kind, message, retryable, timings_us, now_us)
    return Outcome(output=output, timings_us=timings_us, answered="failed")


def _answer_output(
    grouped: GroupedQuery,
    status: Status,
    kind: ErrorType,
    message: str,
    retryable: bool,
    timings_us: dict[str, int],
    now_us: int,
) -> Output:
    answer = unanswered(
        query_id=grouped.query.query_id,
        status=status,
        stage="searcher",
        error_type=kind,
        message=message,
        retryable=retryable,
        source=grouped.source,
        timings_ms={name: time_us / 1_000 for name, time_us in timings_us.items()},
    )
    answer = msgspec.structs.replace(answer, attempts=attempt_of(grouped.headers))
    return answer_output(answer, stage="searcher", now_us=now_us, passed_on=grouped.headers)
