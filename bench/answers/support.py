"""What the threshold of support does to answers that contain a gold answer.

Such an answer should have support in the gold passage. It should have none in the other passages
that were found for its question, without those that contain a gold answer; and none in the gold
passage where the gold answer of another question replaces its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.answers.gold import GoldQuestion
from bench.answers.rows import AskedRow
from bench.data.evaluation import read_passages
from carpool.disk.documents import Passage
from carpool.evaluation.gold import has_gold
from carpool.evaluation.shares import Share, share_of
from carpool.statements import statements
from generator.plan.attribution import SUPPORT_MIN, supports
from generator.plan.evidence import Evidence


def judged_threshold(
    corpus_path: Path, gold: Sequence[GoldQuestion], rows: Sequence[AskedRow]
) -> dict[str, float | Share]:
    """Returns the threshold; answers with support that have it, and others that have none."""
    corpus = {each.doc_id: each for each in read_passages(corpus_path)}
    by_id = {row.question_id: row for row in rows}
    by_gold, by_others, by_replaced = list[float](), list[float](), list[float]()
    for place, asked in enumerate(gold):
        row, own = by_id[asked.id], [corpus[asked.passage]]
        if not row.gold_in_answer:
            continue
        found = [corpus[doc_id] for doc_id in row.retrieved if doc_id != asked.passage]
        others = [one for one in found if not has_gold(f"{one.title} {one.text}", asked.answers)]
        by_gold.append(_support(asked.question, row.answer, own, asked.answers))
        by_others.append(_support(asked.question, row.answer, others, asked.answers))
        right = next(each for each in asked.answers if has_gold(row.answer, [each]))
        wrong = gold[(place + 1) % len(gold)].answers[0]
        replaced = wrong.join(re.split(re.escape(right), row.answer, flags=re.IGNORECASE))
        if replaced != row.answer and not has_gold(own[0].text, [wrong]):
            by_replaced.append(_support(asked.question, replaced, own, [wrong]))
    return {
        "threshold": SUPPORT_MIN,
        "with_support": share_of(support >= SUPPORT_MIN for support in by_gold),
        "without_gold_passage": share_of(support < SUPPORT_MIN for support in by_others),
        "with_another_answer": share_of(support < SUPPORT_MIN for support in by_replaced),
    }


def _support(
    question: str, answer: str, passages: Sequence[Passage], answers: Sequence[str]
) -> float:
    """Returns the best support of a sentence that contains one of `answers`."""
    by_number = {n: (each.title, each.text) for n, each in enumerate(passages, start=1)}
    evidence = Evidence(by_number)
    shares = [
        support.share
        for *_, text in statements(answer)
        if has_gold(text, answers)
        for support in supports(text, question, evidence)
    ]
    return max(shares, default=0.0)
