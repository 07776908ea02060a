"""The questions of a run, and the passages and the answer that each gets without faults."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

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
from carpool.testing.llm_text import write
from generator.plan.prompt import Template, fill
from generator.prompts import load_templates
from generator.settings import GeneratorSettings
from schemas.retrieval import Hit
from searcher.local import LocalSearcher

SCORE_GAP_MIN = 1e-4
"""Scores that are nearer may be ordered differently: products of many queries are rounded
differently from those of a few."""


class AskedQuestions(msgspec.Struct, frozen=True, kw_only=True):
    """`passages`: the right passages, best first, by query id. `template`: of the prompts."""

    questions: ChaosQuestions
    passages: dict[str, tuple[Hit, ...]]
    template: Template
    prompts: GeneratorSettings = GeneratorSettings()

    def texts(self, query_id: str) -> Iterator[str]:
        """Yields each right text of an answer: what the stand-in writes for the question's prompt.

        A prompt may have its passages in any order; that of the scores is first.
        """
        for hits in permutations(self.passages[query_id]):
            prompt = fill(
                self.template,
                self.questions.texts[query_id],
                hits,
                passages_max=self.prompts.passages_max,
                passage_chars_max=self.prompts.passage_chars_max,
                prompt_chars_max=self.prompts.prompt_chars_max,
            )
            yield write(f"{prompt.system}\n{prompt.user}", None)


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
    questions = chaos_questions(
        asked,
        seed,
        broken_within=broken_within,
        batch_share=batch_share,
        repeat_share=repeat_share,
        cancel_share=cancel_share,
    )
    passages = {query_id: given[row][1] for query_id, row in questions.rows.items()}
    prompts = GeneratorSettings()
    template = load_templates(prompts)[prompts.template]
    return AskedQuestions(questions=questions, passages=passages, template=template)
