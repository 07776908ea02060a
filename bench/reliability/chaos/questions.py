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

from bench.data.evaluation import read_passages
from bench.data.index import BenchIndex
from bench.data.made_up import QUESTIONS, made_up_questions
from bench.reliability.chaos.audit import Expected
from bench.reliability.chaos.workflows import NAMES, written
from carpool.workflow.steps import AnswerStep
from producers.read_questions import Question
from schemas.record import ClusterId
from schemas.retrieval import Hit
from searcher.local import LocalSearcher

TOP_K = 3
"""As many passages as a prompt has by default, so that an answer names all of them."""
SCORE_GAP_MIN = 1e-4
"""Scores that are nearer may be ordered differently: products of many queries are rounded
differently from those of a few."""

BATCH_SHARE = 0.25
REPEATED_SHARE = 0.05
FAILS_AT_FIRST_SHARE = 0.02
DEAD_SHARE = 0.005
BROKEN_WITHIN = 0.6
"""The first part, of which some fail; a question fails only while others are answered."""
EQUAL_TEXT_SHARE, WITHDRAWN_SHARE = 0.2, 0.05
"""Of those that do not fail."""
REPEATED_WITHIN = 300
"""A repeated id is one of the last so many of its class."""
REPEATED_TEXT_WITHIN = 20
"""A repeated text is so near that its first answer may still be in progress."""

TRIES_MAX = 4
"""`llm.tries_max` of the services."""
FAILS_AT_FIRST = TRIES_MAX - 2
"""Of the other two tries, one may meet the kill of an LLM server."""
ALWAYS = 1_000_000
WORD = re.compile(r"unanswerable-[0-9]{6}")


class ChaosQuestions(Expected, frozen=True, kw_only=True):
    """The questions of each class, in order, with their ids, and what their answers must be.

    `broken`: how often the stand-in fails on each word. `rows`: the row of the given questions, by
    id.
    """

    interactive: tuple[Question, ...]
    batch: tuple[Question, ...]
    broken: dict[str, int]
    rows: dict[str, int]


def chaos_questions(
    given: Sequence[Question],
    seed: int,
    *,
    batch_share: float = BATCH_SHARE,
    workflow_share: float = 0.0,
    is_plain: bool = False,
) -> ChaosQuestions:
    """Returns as many questions as `given`, drawn from the seed. Pure.

    Plain ones do not fail, have other texts than earlier ones, are not withdrawn, and no
    workflows. `workflow_share`: the share of workflows, of all programs.
    """
    rng, of_shares = random.Random(seed), random.Random(f"{seed} shares")
    of_workflows = random.Random(f"{seed} workflows")
    withdrawn: set[str] = set()
    classes: dict[str, list[Question]] = {"i": [], "b": []}
    plain: dict[str, list[Question]] = {"i": [], "b": []}
    broken: dict[str, int] = {}
    dead: set[str] = set()
    rows: dict[str, int] = {}
    for row, question in enumerate(given):
        name = "b" if rng.random() < batch_share else "i"
        drawn = rng.random()
        if drawn < REPEATED_SHARE and plain[name]:
            classes[name].append(rng.choice(plain[name][-REPEATED_WITHIN:]))
            continue
        drawn -= REPEATED_SHARE
        query_id, text = f"{name}-{row:06}", question.text
        rows[query_id] = row
        may_break = not is_plain and row < BROKEN_WITHIN * len(given)
        is_dead = may_break and 0 <= drawn < DEAD_SHARE
        if is_dead or (may_break and 0 <= drawn - DEAD_SHARE < FAILS_AT_FIRST_SHARE):
            word = f"unanswerable-{row:06}"
            text = f"{text} {word}"
            broken[word] = ALWAYS if is_dead else FAILS_AT_FIRST
            dead |= {query_id} if is_dead else set()
        workflow = None
        if not is_plain and of_workflows.random() < workflow_share:
            workflow = of_workflows.choice(NAMES)
        asked = Question(id=query_id, text=text, vector=question.vector, workflow=workflow)
        if text == question.text:
            if not is_plain and of_shares.random() < EQUAL_TEXT_SHARE and plain[name]:
                earlier = of_shares.choice(plain[name][-REPEATED_TEXT_WITHIN:])
                rows[query_id] = rows[str(earlier.id)]
                asked = msgspec.structs.replace(earlier, id=query_id)
            if not is_plain and of_shares.random() < WITHDRAWN_SHARE:
                withdrawn.add(query_id)
            plain[name].append(asked)
        classes[name].append(asked)
    return ChaosQuestions(
        interactive=tuple(classes["i"]),
        batch=tuple(classes["b"]),
        broken=broken,
        dead=frozenset(dead),
        withdrawn=frozenset(withdrawn),
        workflows={
            str(each.id): (each.workflow, each.text or "")
            for each in (*classes["i"], *classes["b"])
            if each.workflow is not None
        },
        rows=rows,
    )


def drawn_questions(index: BenchIndex, count: int, seed: int, **shares: Any) -> ChaosQuestions:
    """Returns the questions of a run: of made-up ones, those without nearly equal scores.

    `shares`: of `chaos_questions`.
    """
    different = made_up_questions(QUESTIONS)
    vectors = [np.frombuffer(each.vector or b"", dtype="<f4") for each in different]
    with LocalSearcher(index.dir) as searcher:
        results = searcher.search(np.stack(vectors), top_k=TOP_K + 1)
    clear = [
        (question, result.hits[:TOP_K])
        for question, result in zip(different, results, strict=True)
        if np.diff([hit.score for hit in result.hits]).max() < -SCORE_GAP_MIN
    ]
    given = [clear[row % len(clear)] for row in range(count)]
    # Each text is new: an equal prompt would not be generated.
    asked = [
        msgspec.structs.replace(question, text=f"{question.text} ({row})")
        for row, (question, _) in enumerate(given)
    ]
    drawn = chaos_questions(asked, seed, **shares)
    hits = {query_id: given[row][1] for query_id, row in drawn.rows.items()}
    texts = {str(each.id): each.text or "" for each in (*drawn.interactive, *drawn.batch)}
    return msgspec.structs.replace(
        drawn,
        passages={id: [hit.doc_id for hit in found] for id, found in hits.items()},
        texts={
            id: written(AnswerStep("cited", question=text, passages=hits[id]))
            for id, text in texts.items()
        },
        corpus=_corpus(index),
    )


def _corpus(index: BenchIndex) -> dict[str, Hit]:
    """Returns every passage of an index of texts, by id."""
    documents = read_passages(index.dir.with_name(f"{index.dir.name}-corpus.jsonl"))
    return {
        each.doc_id: Hit(
            doc_id=each.doc_id, score=0.0, cluster=ClusterId(0), title=each.title, text=each.text
        )
        for each in documents
    }
