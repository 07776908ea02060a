"""The questions of a run, and the passages and the answer that each gets without faults.

They have two classes, repeated ids and texts; the LLM stand-in fails on a prompt that contains the
word of some, and others are withdrawn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from bench.data.evaluation import read_passages
from bench.data.index import BenchIndex
from bench.data.made_up import DIMENSION, QUESTIONS, made_up_questions, passages_path
from bench.reliability.chaos.check_answer import NAMES, SCORE_GAP_MIN, TOP_K
from bench.reliability.chaos.document_texts import DOCUMENTS, asked_of
from carpool.embedding.hashing import HashingEmbedder
from carpool.workflow.steps import AnswerStep
from producers.read_questions import Question
from schemas.document import Position
from schemas.record import ClusterId
from schemas.retrieval import Hit
from searcher.local import LocalSearcher

BATCH_SHARE = 0.25
REPEATED_SHARE = 0.05
FAILS_AT_FIRST_SHARE = 0.02
DEAD_SHARE = 0.005
BROKEN_WITHIN = 0.6
"""The first part, of which some fail; a question fails only while others are answered."""
EQUAL_TEXT_SHARE, WITHDRAWN_SHARE, DEADLINE_SHARE = 0.2, 0.05, 0.03
"""Of those that do not fail."""
DEADLINE_MS = (50, 500)
"""Bounds of the time for an answer, which takes about 200 ms, so some come too late."""
TENANTS = ("north", "south")
REPEATED_WITHIN = 300
"""A repeated id is one of the last so many of its class."""
REPEATED_TEXT_WITHIN = 20
"""A repeated text is so near that its first answer may still be in progress."""

TRIES_MAX = 4
"""`llm.tries_max` of the services."""
FAILS_AT_FIRST = TRIES_MAX - 2
"""Of the other two tries, one may meet the kill of an LLM server."""
ALWAYS = 1_000_000
STREAMS = ("shares", "workflows", "headers")
"""What each has random numbers of its own for."""
WORD = re.compile(r"unanswerable-[0-9]{6}")


class ChaosQuestion(Question, frozen=True, kw_only=True):
    """A question of the load, and what is known of its answer.

    `row` is that of the given question whose text it has. `fails` says how often the stand-in fails
    on it; `ALWAYS`: until it is replayed. `is_withdrawn`: it may end as `cancelled`. `deadline_ms`:
    the time for its answer, after which it may end as `expired`. `hits`: the right passages, unless
    it `is_live`: then these are of documents, by the position of its answer, which has the `bound`.
    `fetch`: the documents that it fetches.
    """

    id: str
    text: str
    row: int = 0
    is_batch: bool = False
    fails: int = 0
    is_withdrawn: bool = False
    tenant: str | None = None
    deadline_ms: int | None = None
    hits: tuple[Hit, ...] = ()
    is_live: bool = False
    bound: Position = msgspec.field(default_factory=dict)
    fetch: tuple[str, ...] = ()

    @property
    def end(self) -> AnswerStep:
        """The step that makes its answer, if it is no workflow."""
        return AnswerStep("cited", question=self.text, passages=self.hits)


def chaos_questions(
    given: Sequence[Question],
    seed: int,
    *,
    batch_share: float = BATCH_SHARE,
    workflow_share: float = 0.0,
    is_plain: bool = False,
) -> list[ChaosQuestion]:
    """Returns as many questions as `given`, drawn from the seed; some are there again. Pure.

    Plain ones do not fail, have other texts than earlier ones, no tenants and no deadlines, and are
    not withdrawn. `workflow_share`: the share of workflows, of all programs.
    """
    rng = random.Random(seed)
    of_shares, of_workflows, of_headers = (random.Random(f"{seed} {name}") for name in STREAMS)
    found: list[ChaosQuestion] = []
    whole: dict[bool, list[ChaosQuestion]] = {False: [], True: []}  # do not fail, by class
    for row, question in enumerate(given):
        is_batch = rng.random() < batch_share
        earlier, drawn = whole[is_batch], rng.random()
        if drawn < REPEATED_SHARE and earlier:
            found.append(rng.choice(earlier[-REPEATED_WITHIN:]))
            continue
        drawn -= REPEATED_SHARE
        one = ChaosQuestion(
            id=f"{'b' if is_batch else 'i'}-{row:06}",
            text=question.text or "",
            vector=question.vector,
            workflow=of_workflows.choice(NAMES) if of_workflows.random() < workflow_share else None,
            row=row,
            is_batch=is_batch,
        )
        may_fail = not is_plain and row < BROKEN_WITHIN * len(given)
        if may_fail and 0 <= drawn < DEAD_SHARE + FAILS_AT_FIRST_SHARE:
            fails = ALWAYS if drawn < DEAD_SHARE else FAILS_AT_FIRST
            text = f"{one.text} unanswerable-{row:06}"
            found.append(structs.replace(one, text=text, fails=fails))
            continue
        found.append(one if is_plain else _varied(one, earlier, of_shares, of_headers))
        earlier.append(found[-1])
    return found


def _varied(
    one: ChaosQuestion,
    earlier: Sequence[ChaosQuestion],
    of_shares: random.Random,
    of_headers: random.Random,
) -> ChaosQuestion:
    """Returns a question with a tenant, and perhaps another text, a deadline, or withdrawn."""
    if of_shares.random() < EQUAL_TEXT_SHARE and earlier:
        same = of_shares.choice(earlier[-REPEATED_TEXT_WITHIN:])
        one = structs.replace(same, id=one.id)
    is_urgent = of_headers.random() < DEADLINE_SHARE
    return structs.replace(
        one,
        is_withdrawn=of_shares.random() < WITHDRAWN_SHARE,
        tenant=of_headers.choice(TENANTS),
        deadline_ms=of_headers.randint(*DEADLINE_MS) if is_urgent else None,
    )


def drawn_questions(
    index: BenchIndex, count: int, seed: int, *, document_share: float = 0.0, **shares: Any
) -> tuple[ChaosQuestion, ...]:
    """Returns those of a run: made-up ones without nearly equal scores, and some on documents."""
    different = made_up_questions(QUESTIONS)
    vectors = [np.frombuffer(each.vector or b"", dtype="<f4") for each in different]
    with LocalSearcher(index.dir) as searcher:
        results = searcher.search(np.stack(vectors), top_k=TOP_K + 1)
    clear = [
        (question, tuple(result.hits[:TOP_K]))
        for question, result in zip(different, results, strict=True)
        if np.diff([hit.score for hit in result.hits]).max() < -SCORE_GAP_MIN
    ]
    given, of_documents = (
        [clear[row % len(clear)] for row in range(count)],
        questions_on_documents(),
    )
    rng = random.Random(f"{seed} documents")
    live = [row for row in range(count) if rng.random() < document_share]
    for row in live:
        given[row] = rng.choice(of_documents), ()
    # Each text is new: an equal prompt would not be generated.
    asked = [
        structs.replace(question, text=f"{question.text} ({row})")
        for row, (question, _) in enumerate(given)
    ]
    drawn = chaos_questions(asked, seed, **shares)
    is_live = frozenset(live)
    return tuple(
        structs.replace(each, hits=given[each.row][1], is_live=each.row in is_live)
        for each in drawn
    )


def questions_on_documents() -> list[Question]:
    """Returns one about each document, with its vector."""
    texts = [asked_of(number) for number in range(DOCUMENTS)]
    rows = HashingEmbedder(DIMENSION).encode(texts).astype("<f4")
    return [
        Question(text=text, vector=row.tobytes()) for text, row in zip(texts, rows, strict=True)
    ]


def passages_of(index: BenchIndex) -> dict[str, Hit]:
    """Returns every passage of an index of texts, by id."""
    documents = read_passages(passages_path(index.dir))
    return {
        each.doc_id: Hit(
            doc_id=each.doc_id, score=0.0, cluster=ClusterId(0), title=each.title, text=each.text
        )
        for each in documents
    }
