"""The questions of a run, and the passages that a search without faults finds for each."""

from __future__ import annotations

import msgspec
import numpy as np

from bench.data.index import BenchIndex
from bench.data.made_up import QUESTIONS, made_up_questions
from bench.reliability.chaos.load import TOP_K
from bench.reliability.chaos.questions import (
    BATCH_SHARE,
    BROKEN_WITHIN,
    ChaosQuestions,
    chaos_questions,
)
from searcher.local import LocalSearcher

SCORE_GAP_MIN = 1e-4
"""Scores that are nearer may be ordered differently: products of many queries are rounded
differently from those of a few."""


class AskedQuestions(msgspec.Struct, frozen=True, kw_only=True):
    """`passages`: the ids of the right passages, best first, by query id."""

    questions: ChaosQuestions
    passages: dict[str, tuple[str, ...]]


def drawn_questions(
    index: BenchIndex,
    count: int,
    seed: int,
    *,
    broken_within: float = BROKEN_WITHIN,
    batch_share: float = BATCH_SHARE,
    repeat_share: float = 0.0,
    cancel_share: float = 0.0,
) -> AskedQuestions:
    """Returns the questions of a run: of made-up questions, those without nearly equal scores.

    The other arguments: see `chaos_questions`.
    """
    different = made_up_questions(QUESTIONS)
    vectors = [np.frombuffer(each.vector or b"", dtype="<f4") for each in different]
    with LocalSearcher(index.dir) as searcher:
        results = searcher.search(np.stack(vectors), top_k=TOP_K + 1)
    clear = [
        (question, tuple(hit.doc_id for hit in result.hits[:TOP_K]))
        for question, result in zip(different, results, strict=True)
        if np.diff([hit.score for hit in result.hits]).max() < -SCORE_GAP_MIN
    ]
    given = [clear[row % len(clear)] for row in range(count)]
    # Each text is new: an equal prompt would not be generated.
    asked = [
        msgspec.structs.replace(question, text=f"{question.text} ({row})")
        for row, (question, _) in enumerate(given)
    ]
    questions = chaos_questions(
        asked,
        seed,
        broken_within=broken_within,
        batch_share=batch_share,
        repeat_share=repeat_share,
        cancel_share=cancel_share,
    )
    passages = {query_id: given[row][1] for query_id, row in questions.rows.items()}
    return AskedQuestions(questions=questions, passages=passages)
