"""Makes answers: of the model, of quotes, of the log, and of queries that have failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

import carpool
from carpool.endings import AskedQuery
from carpool.loop.stage import Done, Unit
from carpool.workflow.steps import Said
from generator.citing import Citing
from generator.plan.query_digest import query_digest
from generator.prompts import PreparedPrompt
from generator.query_in_progress import Generated, QueryInProgress, QueryProgress
from generator.warmer import Warmed
from schemas.answer import (
    Answer,
    AnswerError,
    CacheUse,
    ErrorType,
    FoundPassage,
    Provenance,
    Retrieved,
    Status,
    Usage,
    steps_done,
)
from schemas.query import results_of, root_of
from schemas.retrieval import Hit, Retrieval

SOFTWARE = f"carpool/{carpool.__version__}"
PASSAGE_CHARS_MAX = 1_000_000
"""As much as a prompt may show of a passage: of a text that was written before, it is not known."""
PASSAGES_CHARS_MAX = 200_000
"""Of the passages of an answer; a record has room for a million bytes."""
NOTHING_FOUND = "No passage was found."
EXTRACTIVE = "extractive"
"""The `finish_reason` of an answer that is a quote."""
NO_MODEL = "none"
"""The `model` of an answer that is a quote."""


def answered(work: QueryInProgress, generated: Generated, now_us: int, warmed: Warmed) -> Answer:
    """Returns the answer that the model wrote, with what its sentences are cited for.

    `ok`: a complete text, and all clusters searched. `partial`: the text was cut off
    (`finish_reason` is `length`), or damaged clusters were skipped (`error` says so). `failed`:
    there is no text. A text that was ended because it repeated itself (`repetition`) is `ok` if it
    has a whole sentence.
    """
    retrieval, prepared = work.unit.record, work.prepared
    written, finished = generated.written, generated.finished
    error, before = _skipped(retrieval), _usage_of_steps(retrieval)
    status: Status = "ok" if written.is_complete and error is None else "partial"
    if not written.answer.strip():
        status, error = "failed", _no_text(finished.finish_reason, finished.refusal)
    citing = _citing(retrieval, prepared.given, prepared.passage_chars_max)
    return _made(
        retrieval,
        citing,
        work.progress,
        now_us,
        cached_tokens=finished.cached_tokens,
        prompt_hash=prepared.prompt_hash,
        status=status,
        attempts=work.progress.attempts,
        **citing.of_text(written.answer),
        prompt_key=work.prompt_key,
        generation_id=generated.generation_id,
        answer=written.answer if status != "failed" else None,
        finish_reason=finished.finish_reason,
        usage=Usage(
            input_tokens=finished.input_tokens + before.input_tokens,
            output_tokens=finished.output_tokens + before.output_tokens,
            cached_tokens=finished.cached_tokens + before.cached_tokens,
            reused_tokens=before.reused_tokens,
            warmed_tokens=warmed.used,
            warmed_in_vain_tokens=warmed.in_vain,
        ),
        model=finished.model or None,
        error=error,
    )


def extracted(retrieval: Retrieval, prepared: PreparedPrompt, progress: QueryProgress) -> Answer:
    """Returns the answer without a model: the quote, which is its citation too.

    `ok`, or `partial` where damaged clusters were skipped (`error` says so).
    """
    citing = _citing(retrieval, prepared.given, prepared.passage_chars_max)
    error = _skipped(retrieval)
    return _made(
        retrieval,
        citing,
        progress,
        progress.arrived_us,
        status="ok" if error is None else "partial",
        attempts=1,
        **citing.of_quote(),
        answer=citing.quotes[0].text if citing.quotes else NOTHING_FOUND,
        finish_reason=EXTRACTIVE,
        usage=_usage_of_steps(retrieval),
        model=NO_MODEL,
        error=error,
    )


def written_before(retrieval: Retrieval, said: Said, progress: QueryProgress) -> Answer:
    """Returns the answer of a workflow that is a text which an earlier step wrote.

    `ok`, `partial` and `failed` as of an answer that the model writes now (`answered`).
    """
    text, error = said.text.strip(), _skipped(retrieval)
    finish_reason = "length" if said.is_cut else "stop"
    is_whole = error is None and not said.is_cut
    citing = _citing(retrieval, _given_before(retrieval, text), PASSAGE_CHARS_MAX)
    return _made(
        retrieval,
        citing,
        progress,
        progress.arrived_us,
        status="failed" if not text else "ok" if is_whole else "partial",
        attempts=1,
        **citing.of_text(text),
        answer=text or None,
        finish_reason=finish_reason,
        usage=_usage_of_steps(retrieval),
        error=error if text else _no_text(finish_reason),
    )


def _given_before(retrieval: Retrieval, text: str) -> Mapping[int, Hit]:
    """Returns the passages of an answer without those that the step which wrote it left out."""
    results = results_of(retrieval.query)
    wrote = [one for one in results if one.hits is None and one.text.strip() == text]
    left_out = wrote[-1].left_out if wrote else ()
    numbered = enumerate(retrieval.hits, start=1)
    return {number: hit for number, hit in numbered if hit.doc_id not in left_out}


def ended_early(asked: AskedQuery, retrieval: Retrieval, kind: ErrorType, message: str) -> Answer:
    """Returns the answer of a workflow that may not go on: `partial`, with its last text."""
    answer = asked.answer("partial", kind, message)
    texts = [step.text for step in answer.steps if step.kind == "generate" and step.text.strip()]
    return msgspec.structs.replace(
        answer, answer=texts[-1] if texts else None, usage=_usage_of_steps(retrieval)
    )


def _usage_of_steps(retrieval: Retrieval) -> Usage:
    """Returns the tokens of the finished steps of a workflow."""
    all_results = results_of(retrieval.query)
    results = [result for result in all_results if not result.is_shared]
    return Usage(
        reused_tokens=sum(
            result.input_tokens + result.output_tokens for result in all_results if result.is_shared
        ),
        input_tokens=sum(result.input_tokens for result in results),
        output_tokens=sum(result.output_tokens for result in results),
        cached_tokens=sum(result.cached_tokens for result in results),
    )


def _citing(retrieval: Retrieval, given: Mapping[int, Hit], passage_chars_max: int) -> Citing:
    return Citing(retrieval.query.text or "", given, passage_chars_max)


def _made(
    retrieval: Retrieval,
    citing: Citing,
    progress: QueryProgress,
    now_us: int,
    *,
    cached_tokens: int = 0,
    prompt_hash: str | None = None,
    **fields: Any,
) -> Answer:
    """Returns an answer that is made here, with `fields`. `citing`: the passages of its prompt."""
    return Answer(
        query_id=retrieval.query.query_id,
        is_final=True,
        replayed=False,
        quotes=citing.quotes,
        retrieved=tuple(
            Retrieved(id=hit.doc_id, score=hit.score, in_prompt=number in citing.given)
            for number, hit in enumerate(retrieval.hits, start=1)
        ),
        source=retrieval.source,
        query_digest=query_digest(retrieval.query),
        steps=steps_done(retrieval.query),
        timings_ms=_timings_ms(retrieval, progress, now_us),
        search=retrieval.search,
        cache=_cache_use(retrieval, cached_tokens),
        provenance=_provenance(retrieval, prompt_hash),
        corpus=retrieval.corpus,
        passages=_passages(retrieval),
        **fields,
    )


def _passages(retrieval: Retrieval) -> tuple[FoundPassage, ...]:
    """Returns the texts of what was found, the best first, as far as an answer has room."""
    if not root_of(retrieval.query).passages:
        return ()
    found, left = list[FoundPassage](), PASSAGES_CHARS_MAX
    for hit in retrieval.hits:
        if (left := left - len(hit.text)) < 0:
            break
        found.append(
            FoundPassage(
                id=hit.doc_id,
                text=hit.text,
                title=hit.title,
                score=hit.score,
                metadata=hit.metadata,
            )
        )
    return tuple(found)


def replayed(stored: Answer, retrieval: Retrieval, progress: QueryProgress, now_us: int) -> Answer:
    """Returns the stored `ok` answer for another record with the same id and question.

    `source` and `timings_ms` are this record's; of `usage` the tokens are `reused_tokens`; every
    other field is the stored answer's.
    """
    return msgspec.structs.replace(
        stored,
        replayed=True,
        source=retrieval.source,
        usage=_reused(stored.usage),
        timings_ms=_timings_ms(retrieval, progress, now_us),
    )


def given_again(
    stored: Answer, retrieval: Retrieval, progress: QueryProgress, now_us: int
) -> Answer:
    """Returns the stored answer to an equal prompt for another query.

    What the model wrote is the stored answer's: text, citations, generation and its model. Who
    asked, what was found and how long it took is this query's.
    """
    in_prompt = {each.id for each in stored.retrieved if each.in_prompt}
    scores = {hit.doc_id: hit.score for hit in retrieval.hits}
    return msgspec.structs.replace(
        replayed(stored, retrieval, progress, now_us),
        query_id=retrieval.query.query_id,
        query_digest=query_digest(retrieval.query),
        citations=tuple(
            msgspec.structs.replace(cited, score=scores.get(cited.doc_id, cited.score))
            for cited in stored.citations
        ),
        retrieved=tuple(
            Retrieved(id=hit.doc_id, score=hit.score, in_prompt=hit.doc_id in in_prompt)
            for hit in retrieval.hits
        ),
        steps=steps_done(retrieval.query),
        search=retrieval.search,
        corpus=retrieval.corpus,
        passages=_passages(retrieval),
        cache=_cache_use(retrieval, 0),
        provenance=_provenance(
            retrieval, None if stored.provenance is None else stored.provenance.prompt_hash
        ),
    )


def _reused(usage: Usage | None) -> Usage | None:
    """Returns the usage of an answer that repeats one with this usage: nothing was computed."""
    if usage is None:
        return None
    return Usage(reused_tokens=usage.input_tokens + usage.output_tokens + usage.reused_tokens)


def asked_of(unit: Unit[Retrieval], progress: QueryProgress, now_us: int) -> AskedQuery:
    """Returns the query of a unit, for its end without an answer of the model."""
    return replace(
        AskedQuery.of(unit, stage="generator"),
        attempts=max(1, progress.attempts),
        timings_ms=_timings_ms(unit.record, progress, now_us),
    )


def expired(asked: AskedQuery, progress: QueryProgress, now_us: int) -> Done:
    """Returns the end of a query whose deadline has passed."""
    trouble = progress.trouble
    note = f"; the LLM server, the last time: {trouble}" if trouble else ""
    return asked.expired(now_us, "an answer was written", note)


def _timings_ms(retrieval: Retrieval, progress: QueryProgress, now_us: int) -> dict[str, float]:
    """Returns the milliseconds of every stage: those of the retrieval, and the generator's.

    `queue_llm` ends when the answered request was sent, so it includes pauses and earlier tries.
    `total` begins at the timestamp of the query's record.
    """
    sent_us = now_us if progress.sent_us is None else progress.sent_us
    ours = {"queue_llm": sent_us - progress.arrived_us}
    if progress.sent_us is not None and progress.first_token_us is not None:
        ours["ttft"] = progress.first_token_us - progress.sent_us
        ours["decode"] = now_us - progress.first_token_us
    ours["total"] = max(0, now_us - retrieval.source.timestamp_ms * 1_000)
    return {stage: time_us / 1_000 for stage, time_us in {**retrieval.timings_us, **ours}.items()}


def _provenance(retrieval: Retrieval, prompt_hash: str | None) -> Provenance:
    return Provenance(
        index_version=retrieval.index_version,
        embedding_model=retrieval.embedding_model,
        prompt_hash=prompt_hash,
        software=SOFTWARE,
    )


def _cache_use(retrieval: Retrieval, kv_hit_tokens: int) -> CacheUse:
    tiers = [probe.tier for probe in retrieval.probes]
    return CacheUse(
        gpu=tiers.count("gpu"),
        ram=tiers.count("ram"),
        ssd=tiers.count("ssd"),
        bytes_read=retrieval.bytes_read,
        kv_hit_tokens=kv_hit_tokens,
    )


def _skipped(retrieval: Retrieval) -> AnswerError | None:
    if not retrieval.skipped_clusters:
        return None
    clusters = ", ".join(map(str, retrieval.skipped_clusters[:20]))
    return AnswerError(
        type="index_damaged",
        message=f"{len(retrieval.skipped_clusters)} clusters could not be read and were not "
        f"searched ({clusters}); better passages may be missing",
        retryable=True,
        stage="searcher",
    )


def _no_text(finish_reason: str, refusal: str = "") -> AnswerError:
    is_cut = finish_reason == "length"
    advice = "; ask again with a larger generation.max_tokens" if is_cut else ""
    said = f"; it refused: {refusal}" if refusal.strip() else advice
    message = f"the model wrote no answer (finish_reason {finish_reason!r}){said}"
    return AnswerError(type="llm_refused", message=message, retryable=is_cut, stage="generator")
