"""The threshold of support, chosen on one half of the answers and judged on the other; its cost.

An answer that contains a gold answer should have support in the gold passage. It should have none
in the other passages that were found for its question, without those that contain a gold answer;
and none in the gold passage where the gold answer of another question replaces its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.answers.gold import GoldQuestion, has_gold
from bench.answers.rows import AskedRow, Share, share_of
from bench.data.evaluation import read_passages
from carpool.disk.documents import Document
from generator.plan.attribution import SUPPORT_MIN, attribute, statements, supports
from generator.plan.citations import cite
from generator.plan.evidence import Evidence

PASSAGES = 3
STEPS = tuple(step / 20 for step in range(4, 20))


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What a threshold does: answers with support that have it, and others that have none."""

    threshold: float
    with_support: Share
    without_gold_passage: Share
    with_another_answer: Share


class JudgedThreshold(msgspec.Struct, frozen=True, kw_only=True):
    """The threshold with the best sum of shares on one half, on the other; and Carpool's on all.

    `cpu_ms`: of the attribution of two answers, one after the other, to three passages; the mean.
    """

    chosen: Judged
    of_carpool: Judged
    cpu_ms: float


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """Supports of an answer: by the gold passage, by others, and where it is another answer."""

    gold: float
    others: float
    replaced: tuple[float, ...]


def judged_threshold(
    corpus_path: Path, gold: Sequence[GoldQuestion], rows: Sequence[AskedRow]
) -> JudgedThreshold:
    """Returns what thresholds do on the answers that contain a gold answer.

    The answers with an even place among them choose the threshold, and the others judge it.
    """
    corpus = {each.doc_id: each for each in read_passages(corpus_path)}
    cases = list(_cases(corpus, gold, rows))
    best = max((_judged(cases[::2], step) for step in STEPS), key=_rank)
    return JudgedThreshold(
        chosen=_judged(cases[1::2], best.threshold),
        of_carpool=_judged(cases, SUPPORT_MIN),
        cpu_ms=_cpu_ms(corpus, rows),
    )


def _judged(cases: Sequence[_Case], threshold: float) -> Judged:
    return Judged(
        threshold=threshold,
        with_support=share_of(case.gold >= threshold for case in cases),
        without_gold_passage=share_of(case.others < threshold for case in cases),
        with_another_answer=share_of(
            support < threshold for case in cases for support in case.replaced
        ),
    )


def _cpu_ms(corpus: dict[str, Document], rows: Sequence[AskedRow]) -> float:
    begin = time.process_time()
    for row, other in pairwise(rows):
        answer = f"{row.answer} {other.answer}"
        found = [corpus[doc_id] for doc_id in row.retrieved[:PASSAGES]]
        evidence = Evidence({n: (one.title, one.text) for n, one in enumerate(found, start=1)})
        attribute(row.question, answer, cite(answer, passages=evidence.words).valid, evidence)
    return (time.process_time() - begin) / max(1, len(rows) - 1) * 1_000


def _rank(judged: Judged) -> tuple[float, float]:
    """Orders thresholds by the sum of their shares; of equal ones the higher is better."""
    shares = (judged.with_support, judged.without_gold_passage, judged.with_another_answer)
    return round(sum(each.share for each in shares), 9), judged.threshold


def _cases(
    corpus: dict[str, Document], gold: Sequence[GoldQuestion], rows: Sequence[AskedRow]
) -> Iterator[_Case]:
    by_id = {row.question_id: row for row in rows}
    for place, asked in enumerate(gold):
        row = by_id[asked.id]
        if not row.gold_in_answer:
            continue
        own = [corpus[asked.passage]]
        others = [
            corpus[doc_id]
            for doc_id in row.retrieved
            if doc_id != asked.passage
            and not has_gold(f"{corpus[doc_id].title} {corpus[doc_id].text}", asked.answers)
        ]
        right = next(each for each in asked.answers if has_gold(row.answer, [each]))
        wrong = gold[(place + 1) % len(gold)].answers[0]
        replaced = wrong.join(re.split(re.escape(right), row.answer, flags=re.IGNORECASE))
        is_other = replaced != row.answer and not has_gold(own[0].text, [wrong])
        yield _Case(
            gold=_support(asked.question, row.answer, own, asked.answers),
            others=_support(asked.question, row.answer, others, asked.answers),
            replaced=(_support(asked.question, replaced, own, [wrong]),) if is_other else (),
        )


def _support(
    question: str, answer: str, passages: Sequence[Document], answers: Sequence[str]
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
