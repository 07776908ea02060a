"""The output record of a query: its final retrieval, or a terminal answer with the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import msgspec
import structlog

from carpool.codes.margin import EXPECTED_RECALL
from carpool.disk.documents import Passage
from carpool.endings import AskedQuery
from carpool.errors import ReadError, RetryableError
from carpool.kafka.records import Output
from carpool.kafka.sizes import fits
from carpool.loop.stage import Done, Operation, Unit
from carpool.origins import later_attempt
from carpool.retrievals import retrieval_output
from carpool.telemetry.logs import about
from schemas.document import Corpus
from schemas.group import Group, GroupedQuery
from schemas.query import Query, finished_steps
from schemas.retrieval import Hit, Retrieval, Searched
from schemas.topics import RETRIEVAL_DRAFTS, RETRIEVALS
from searcher.executor import SearchDraft, SearchResult, hits_of

_log = structlog.get_logger(__name__)


def finish(
    unit: Unit[Group],
    part: int,
    found: SearchResult,
    passages: Sequence[Passage] | ReadError,
    *,
    corpus: Corpus | None = None,
    fetch_us: int,
    measured_nprobe: int | None = None,
    now_us: int,
) -> tuple[Done, dict[str, int]]:
    """Returns the retrieval of query `part`, with its passages: one for each row that was found.

    And its timings, in microseconds. `fetch_us`: how long it waited for the passages;
    `measured_nprobe`: the default of an index that was measured with questions; None: it was not.
    It is a `failed` answer where no cluster or no passage could be read, or the record would be too
    large.
    """
    group, grouped = unit.record, unit.record.queries[part]
    timings_us = {
        **grouped.timings_us,
        "queue_search": max(0, found.started_us - unit.message.written_us),
        "load": found.load_us,
        "search": found.search_us,
    }
    broken = _why_broken(found, passages)
    if broken is None:
        timings_us["passages"] = fetch_us
    timings_ms = {name: time_us / 1_000 for name, time_us in timings_us.items()}
    asked = replace(AskedQuery.of(unit, part, stage="searcher"), timings_ms=timings_ms)
    if broken is not None:
        message, is_transient = broken
        where = about(grouped.source, grouped.headers, query_id=grouped.query.query_id)
        _log.error("a search failed", error=message, **where)
        failed = asked.failed(
            now_us, "index_damaged", message, retryable=is_transient, is_transient=is_transient
        )
        return failed, timings_us
    assert isinstance(passages, Sequence), "an error is a failure"
    hits = hits_of(found.best, passages)
    retrieval = _retrieval(group, grouped, found, hits, corpus, measured_nprobe, timings_us, now_us)
    steps = "" if retrieval.query.journal is None else f".{finished_steps(retrieval.query)}"
    name = f"r1{steps}{later_attempt(grouped.headers)}"
    output = retrieval_output(retrieval, name, stage="searcher")
    if not fits(output, RETRIEVALS):
        answer = asked.answer("failed", "too_large", _too_large(output, len(passages)))
        return asked.ended(answer, now_us), timings_us
    operation = _operation(group.index_version, found, len(passages), now_us)
    done = Done(parts=((unit.id, part),), outputs=(output,), operations=(operation,))
    return done, timings_us


def _too_large(output: Output, passages: int) -> str:
    size_bytes = len(output.value or b"")
    return (
        f"its {passages} passages make a record of {size_bytes} bytes, and "
        f"{RETRIEVALS.name} takes {RETRIEVALS.max_message_bytes}; ask for a smaller top_k"
    )


def _why_broken(
    found: SearchResult, passages: Sequence[Passage] | ReadError
) -> tuple[str, bool] | None:
    """Returns why a search has no result, and whether that may pass; None: it has one."""
    if found.errors and not len(found.best.rows):
        message = (
            f"nothing was found, because {len(found.skipped)} of the {len(found.probes)} clusters "
            f"that it probes could not be read: {found.errors[0]}"
        )
        return message, all(isinstance(error, RetryableError) for error in found.errors)
    if isinstance(passages, ReadError):
        message = f"its passages were found and could not be read: {passages}"
        return message, isinstance(passages, RetryableError)
    return None


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
    name = f"d{revision}{later_attempt(grouped.headers)}"
    output = retrieval_output(draft, name, stage="searcher", topic=RETRIEVAL_DRAFTS.name)
    return output if fits(output, RETRIEVAL_DRAFTS) else None


def expire(unit: Unit[Group], part: int, now_us: int) -> Done:
    """Returns the terminal answer of a query whose deadline has passed."""
    return AskedQuery.of(unit, part, stage="searcher").expired(now_us, "the search was done")


def return_query(unit: Unit[Group], part: int, *, index_version: str, now_us: int) -> Done:
    """Returns the record that asks for a new plan of query `part`, with this index or a newer one.

    It is an `expired` answer where the deadline has passed, and a `failed` one where the record
    would be too large.
    """
    asked = AskedQuery.of(unit, part, stage="searcher")
    if asked.deadline_us is not None and now_us >= asked.deadline_us:
        return expire(unit, part, now_us)
    output = asked.planned_again(index_version, now_us)
    if output is not None:
        return Done(parts=(asked.part,), outputs=(output,), early="")
    message = (
        f"it was planned with index {unit.record.index_version}, the searcher has {index_version}, "
        "and the record that would ask for a new plan is larger than its topic takes; ask again"
    )
    answer = asked.answer("failed", "too_large", message, retryable=True)
    return asked.ended(answer, now_us)


def _retrieval(
    group: Group,
    grouped: GroupedQuery,
    found: SearchResult,
    hits: tuple[Hit, ...],
    corpus: Corpus | None,
    measured_nprobe: int | None,
    timings_us: dict[str, int],
    now_us: int,
) -> Retrieval:
    others = (cluster for search in grouped.other_searches for cluster in search.clusters)
    nprobe = len({*grouped.clusters, *others})  # without the zero cluster, which nobody probes
    return Retrieval(
        query=group.published(grouped),
        source=grouped.source,
        headers=grouped.headers,
        deadline_us=grouped.deadline_us,
        revision=1,
        is_final=True,
        index_version=group.index_version,
        corpus=corpus,
        embedding_model=group.embedding_model,
        hits=hits[: found.counts[0]] if found.counts else hits,
        other_hits=_other_hits(hits, found.counts),
        skipped_clusters=found.skipped,
        probes=found.probes,
        search=Searched(
            mode=found.mode,
            nprobe=nprobe,
            rows_read=found.rows_read,
            expected_recall=EXPECTED_RECALL[found.mode],
            recall_target=grouped.query.recall_target,
            is_calibrated=_is_calibrated(grouped.query, nprobe, measured_nprobe),
        ),
        bytes_read=found.bytes_read,
        timings_us=timings_us,
        batch_size=len(group.queries),
        completed_us=now_us,
    )


def _other_hits(hits: tuple[Hit, ...], counts: Sequence[int]) -> tuple[tuple[Hit, ...], ...]:
    """Returns the hits of the searches after the first one."""
    ends = list(accumulate(counts))
    return tuple(hits[begin:end] for begin, end in pairwise(ends))


def _is_calibrated(query: Query, nprobe: int, measured_nprobe: int | None) -> bool | None:
    if query.nprobe is not None:
        return None
    is_of_index = query.recall_target is not None or nprobe == measured_nprobe
    return measured_nprobe is not None and is_of_index


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
