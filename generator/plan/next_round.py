"""The next round of a workflow, whose record has arrived or whose texts are written.

Pure: the same record gives the same `Round`, which is a search, some texts, or the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from carpool.workflow.program import NextSteps
from carpool.workflow.steps import AnswerStep, Generate, Retrieve, WorkflowError
from carpool.workflow.workflows import search_query, with_results
from schemas.document import Position
from schemas.query import Generation, Journal, Query, results_of, root_of
from schemas.record import ClusterId
from schemas.retrieval import Retrieval
from schemas.workflow import StepResult


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchNext:
    """`query`, which searches for the next round, is to be written."""

    query: Query


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateNext:
    """The texts of `steps` are to be generated side by side. `retrieval`: the last record."""

    steps: tuple[Generate, ...]
    retrieval: Retrieval

    def retrieval_of(self, step: Generate) -> Retrieval:
        """Returns a retrieval whose question and passages are those of a step."""
        return as_asked(self.retrieval, step)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerNext:
    """The workflow ends: `retrieval` is answered as `answer` says."""

    retrieval: Retrieval
    answer: AnswerStep


Round: TypeAlias = SearchNext | GenerateNext | AnswerNext


def with_found(retrieval: Retrieval, now_us: int) -> Retrieval:
    """Returns a record whose journal has the results of the searches that it brings, if any.

    Raises `WorkflowError`.
    """
    query, journal = retrieval.query, retrieval.query.journal
    assert journal is not None, "it was begun"
    if not journal.began_us:
        return retrieval
    journal = msgspec.structs.replace(journal, corpus=journal.corpus or retrieval.corpus)
    query = msgspec.structs.replace(query, journal=journal, bound=_next_bound(retrieval))
    return msgspec.structs.replace(
        retrieval, query=with_results(query, _found(retrieval, journal, now_us))
    )


def next_round(retrieval: Retrieval, wanted: NextSteps, now_us: int) -> Round:
    """Returns what follows the steps in the journal of a record: what its program has asked for."""
    if (answer := wanted.answer) is not None:
        return AnswerNext(retrieval=as_asked(retrieval, answer), answer=answer)
    searches = [step for step in wanted.steps if isinstance(step, Retrieve)]
    if searches:
        return SearchNext(query=search_query(retrieval.query, searches, now_us))
    texts = tuple(step for step in wanted.steps if isinstance(step, Generate))
    return GenerateNext(steps=texts, retrieval=retrieval)


def as_asked(retrieval: Retrieval, step: Generate) -> Retrieval:
    """Returns a retrieval with the question, the options and the passages of a step.

    An answer has the options of the published query where the step names none.
    """
    query, root = retrieval.query, root_of(retrieval.query)
    published = root.generation or Generation()
    wishes = published if isinstance(step, AnswerStep) else Generation()
    question = step.values.get("question")
    asked_for = msgspec.structs.replace(
        wishes,
        template=step.template or None,
        max_tokens=step.max_tokens or wishes.max_tokens,
        temperature=step.temperature or wishes.temperature,
        seed=wishes.seed if step.seed is None else step.seed,
        reuse=published.reuse,
        model=published.model,
    )
    return msgspec.structs.replace(
        retrieval,
        query=msgspec.structs.replace(
            root,
            text=question if isinstance(question, str) else root.text,
            generation=asked_for,
            journal=query.journal,
        ),
        corpus=retrieval.corpus if query.journal is None else query.journal.corpus,
        hits=tuple(step.passages),
        other_hits=(),
        skipped_clusters=_skipped(query),
    )


def _next_bound(retrieval: Retrieval) -> Position | None:
    """Returns the documents that the next search must have: those of the last one."""
    if retrieval.corpus is None:
        return retrieval.query.bound
    return dict(retrieval.corpus.position) or None


def _skipped(query: Query) -> tuple[ClusterId, ...]:
    """Returns the clusters that could not be read in a search of the workflow."""
    skipped = (cluster for result in results_of(query) for cluster in result.skipped)
    return tuple(dict.fromkeys(skipped))


def _found(retrieval: Retrieval, journal: Journal, now_us: int) -> list[StepResult]:
    """Returns the results of the searches that the journal names, with the texts searched.

    The digests are those of the steps for which they were searched. If the program asks for others
    when it is run again, `resume` finds that.
    """
    texts = (retrieval.query.text or "", *(each.text for each in journal.other_searches))
    hits = (retrieval.hits, *retrieval.other_hits)
    if not len(texts) == len(hits) == len(journal.asked):
        raise WorkflowError(
            f"{len(texts)} searches found {len(hits)} lists of passages for {len(journal.asked)} "
            "steps: another version of Carpool began this workflow; ask again",
            "workflow_changed",
        )
    took_us = max(0, (retrieval.completed_us or now_us) - journal.began_us)
    return [
        StepResult(
            digest=digest,
            text=text,
            hits=found,
            skipped=retrieval.skipped_clusters,
            took_ms=took_us / 1_000,
        )
        for digest, text, found in zip(journal.asked, texts, hits, strict=True)
    ]
