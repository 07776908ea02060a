"""The output record of a query: its final retrieval, or a terminal answer with the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

import msgspec
import structlog

from carpool.codes.margin import EXPECTED_RECALL
from carpool.disk.documents import Document
from carpool.errors import ReadError, RetryableError
from carpool.kafka.records import Output
from carpool.kafka.sizes import fits
from carpool.loop.answers import answer_output
from carpool.loop.retry import attempt_of, later_attempt, plan_again
from carpool.loop.stage import QueryFailure
from carpool.loop.tracing.operation import Operation
from carpool.telemetry.logs import about
from schemas.answer import ErrorType, Status, unanswered
from schemas.codec import encode
from schemas.group import Group, GroupedQuery
from schemas.query import Query, finished_steps
from schemas.retrieval import Hit, Retrieval, Searched
from schemas.topics import RETRIEVAL_DRAFTS, RETRIEVALS, in_class_of
from searcher.executor import SearchDraft, SearchResult, hits_of

_log = structlog.get_logger(__name__)

SOURCE = "carpool/searcher"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The one output record of a query.

    `answered`: the status of a terminal answer; None for a retrieval. `failure`: set where the
    query is not the cause of the error and may be retried.
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
    passages: Sequence[Document] | ReadError,
    *,
    published_us: int,
    fetch_us: int,
    measured_nprobe: int | None = None,
    now_us: int,
) -> Outcome:
    """Returns the retrieval of query `part`, with its passages: one for each row that was found.

    `fetch_us`: how long it waited for them; `measured_nprobe`: the default
    of an index that was measured with questions; None: it was not.

    It is a `failed` answer where no cluster or no passage could be read, or the record would be too
    large.
    """
    grouped = group.queries[part]
    timings_us = {
        **grouped.timings_us,
        "queue_search": max(0, found.started_us - published_us),
        "load": found.load_us,
        "search": found.search_us,
    }
    if found.errors and not len(found.best.rows):
        message = (
            f"nothing was found, because {len(found.skipped)} of the {len(found.probes)} clusters "
            f"that it probes could not be read: {found.errors[0]}"
        )
        is_transient = all(isinstance(error, RetryableError) for error in found.errors)
        return _broken(group, grouped, message, is_transient, timings_us, now_us)
    if isinstance(passages, ReadError):
        where = about(grouped.source, grouped.headers, query_id=grouped.query.query_id)
        _log.error("passages unreadable", error=str(passages), **where)
        message = f"its passages were found and could not be read: {passages}"
        is_transient = isinstance(passages, RetryableError)
        return _broken(group, grouped, message, is_transient, timings_us, now_us)
    timings_us["passages"] = fetch_us
    retrieval = _retrieval(group, grouped, found, passages, measured_nprobe, timings_us, now_us)
    topic = in_class_of(grouped.source.topic, RETRIEVALS)
    steps = "" if retrieval.query.journal is None else f".{finished_steps(retrieval.query)}"
    output = _retrieval_output(retrieval, f"r1{steps}", topic.name)
    if not fits(output, RETRIEVALS):
        message = (
            f"its {len(passages)} passages make a record of {len(output.value)} bytes, and "
            f"{RETRIEVALS.name} takes {RETRIEVALS.max_message_bytes}; ask for a smaller top_k"
        )
        return _unanswered(grouped, "failed", "too_large", message, False, timings_us, now_us)
    operation = _operation(group.index_version, found, len(passages), now_us)
    return Outcome(output=output, timings_us=timings_us, operations=(operation,))


def draft_output(
    group: Group,
    part: int,
    found: SearchDraft,
    hits: tuple[Hit, ...],
    *,
    revision: int,
    now_us: int,
) -> Output | None:
    """Returns a draft of query `part`; None where it would be larger than its topic takes.

    `hits`: the best so far; `revision`: 1 for the first draft of a query.
    """
    grouped = group.queries[part]
    draft = Retrieval(
        query=msgspec.structs.replace(grouped.query, vector=None),
        source=grouped.source,
        headers=grouped.headers,
        deadline_us=grouped.deadline_us,
        revision=revision,
        is_final=False,
        index_version=group.index_version,
        embedding_model=group.embedding_model,
        hits=hits,
        skipped_clusters=(),
        completed_us=now_us,
        clusters_done=found.clusters_done,
        clusters_total=found.clusters_total,
    )
    output = _retrieval_output(draft, f"d{revision}", RETRIEVAL_DRAFTS.name)
    return output if fits(output, RETRIEVAL_DRAFTS) else None


def expire(grouped: GroupedQuery, now_us: int) -> Outcome:
    """Returns the terminal answer of a query whose deadline has passed."""
    late_ms = (now_us - (grouped.deadline_us or 0)) / 1_000
    message = (
        f"the deadline passed {late_ms:.0f} ms before the search was done; ask again "
        "with a later one"
    )
    return _unanswered(grouped, "expired", "expired", message, True, grouped.timings_us, now_us)


def return_query(group: Group, part: int, *, index_version: str, now_us: int) -> Outcome:
    """Returns the record that asks for a new plan of query `part`, with this index or a newer one.

    It is an `expired` answer where the deadline has passed, and a `failed` one where the record
    would be too large.
    """
    grouped = group.queries[part]
    if grouped.deadline_us is not None and now_us >= grouped.deadline_us:
        return expire(grouped, now_us)
    output = plan_again(
        group.published(grouped),
        grouped.source,
        grouped.headers,
        index_version=index_version,
        stage="searcher",
        now_us=now_us,
    )
    if output is not None:
        return Outcome(output=output, timings_us=grouped.timings_us)
    message = (
        f"it was planned with index {group.index_version}, the searcher has {index_version}, and "
        f"the record that would ask for a new plan is larger than its topic takes; ask again"
    )
    return _unanswered(grouped, "failed", "too_large", message, True, grouped.timings_us, now_us)


def _retrieval(
    group: Group,
    grouped: GroupedQuery,
    found: SearchResult,
    passages: Sequence[Document],
    measured_nprobe: int | None,
    timings_us: dict[str, int],
    now_us: int,
) -> Retrieval:
    hits = hits_of(found.best, passages)
    return Retrieval(
        query=group.published(grouped),
        source=grouped.source,
        headers=grouped.headers,
        deadline_us=grouped.deadline_us,
        revision=1,
        is_final=True,
        index_version=group.index_version,
        embedding_model=group.embedding_model,
        hits=hits[: found.counts[0]] if found.counts else hits,
        beside=_beside(hits, found.counts),
        skipped_clusters=found.skipped,
        probes=found.probes,
        search=Searched(
            mode=found.mode,
            nprobe=len(found.probes),
            rows_read=found.rows_read,
            expected_recall=EXPECTED_RECALL[found.mode],
            recall_target=grouped.query.recall_target,
            is_calibrated=_is_calibrated(grouped.query, len(found.probes), measured_nprobe),
        ),
        bytes_read=found.bytes_read,
        timings_us=timings_us,
        batch_size=len(group.queries),
        completed_us=now_us,
    )


def _beside(hits: tuple[Hit, ...], counts: Sequence[int]) -> tuple[tuple[Hit, ...], ...]:
    """Returns the hits of the searches beside the first one."""
    ends = list(accumulate(counts))
    return tuple(hits[begin:end] for begin, end in pairwise(ends))


def _is_calibrated(query: Query, nprobe: int, measured_nprobe: int | None) -> bool | None:
    if query.nprobe is not None:
        return None
    is_of_index = query.recall_target is not None or nprobe == measured_nprobe
    return measured_nprobe is not None and is_of_index


def _retrieval_output(retrieval: Retrieval, name: str, topic: str) -> Output:
    value, headers = encode(
        retrieval,
        event_id=f"{retrieval.source.place}/{name}{later_attempt(retrieval.headers)}",
        source=SOURCE,
        time_us=retrieval.completed_us,
        passed_on=retrieval.headers,
    )
    key = retrieval.query.query_id.encode()
    return Output(topic=topic, key=key, value=value, headers=headers)


def _unanswered(
    grouped: GroupedQuery,
    status: Literal["failed", "expired"],
    kind: ErrorType,
    message: str,
    retryable: bool,
    timings_us: dict[str, int],
    now_us: int,
) -> Outcome:
    answer = unanswered(
        query_id=grouped.query.query_id,
        status=status,
        stage="searcher",
        error_type=kind,
        message=message,
        retryable=retryable,
        source=grouped.source,
        timings_ms={name: time_us / 1_000 for name, time_us in timings_us.items()},
        attempts=attempt_of(grouped.headers),
        query=grouped.query,
    )
    output = answer_output(answer, stage="searcher", now_us=now_us, passed_on=grouped.headers)
    return Outcome(output=output, timings_us=timings_us, answered=status)


def _broken(
    group: Group,
    grouped: GroupedQuery,
    message: str,
    is_transient: bool,
    timings_us: dict[str, int],
    now_us: int,
) -> Outcome:
    outcome = _unanswered(
        grouped, "failed", "index_damaged", message, is_transient, timings_us, now_us
    )
    failure = QueryFailure(
        query=group.published(grouped),
        source=grouped.source,
        headers=grouped.headers,
        deadline_us=grouped.deadline_us,
        error_type="index_damaged",
        message=message,
        is_transient=is_transient,
    )
    return replace(outcome, failure=failure)


def _operation(index_version: str, found: SearchResult, passages: int, ended_us: int) -> Operation:
    """Returns a retrieval for a trace, by the semantic conventions for generative AI.

    It lasts from the start of the search until the passages were fetched.
    """
    tiers = [probe.tier for probe in found.probes]
    return Operation(
        name=f"retrieval {index_version}",
        started_us=found.started_us,
        ended_us=ended_us,
        attributes={
            "gen_ai.operation.name": "retrieval",
            "gen_ai.data_source.id": index_version,
            "carpool.retrieval.passages": passages,
            "carpool.retrieval.clusters": len(tiers),
            "carpool.retrieval.clusters_skipped": len(found.skipped),
            "carpool.retrieval.clusters_from_disk": tiers.count("ssd"),
            "carpool.retrieval.bytes_read": found.bytes_read,
            "carpool.retrieval.load_us": found.load_us,
            "carpool.retrieval.search_us": found.search_us,
        },
    )
