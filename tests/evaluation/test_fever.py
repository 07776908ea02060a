"""Claims of FEVER with the pages that are their evidence, cited by the code of the generator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.data.evaluation import CLAIMS, EVIDENCE, EvaluationData, read_evidence, read_passages
from carpool.evaluation.judging import Gold
from carpool.evaluation.report import Report, report
from carpool.sentences import SENTENCE_CHARS_MAX, sentence_spans
from generator.citing import Citing
from schemas.answer import Retrieved
from schemas.batch import AnswerLine
from schemas.hit import Hit
from schemas.record import ClusterId

pytestmark = pytest.mark.data


def evaluated(shift: int) -> Report:
    """Answers each claim with the first sentence of its evidence, and cites the page that stands
    `shift` claims behind.
    """
    data = EvaluationData(folder=Path(os.environ["CARPOOL_DATA"]))
    passages = {each.doc_id: each for each in read_passages(data.corpus_path)}
    evidence, claims = read_evidence(data.file(EVIDENCE)), data.questions(CLAIMS)
    pages = [min(evidence[str(claim.id)]) for claim in claims]
    gold, answers = dict[int, Gold](), dict[int, AnswerLine]()
    for line, claim in enumerate(claims, 1):
        text = passages[pages[line - 1]].text
        start, end = next(sentence_spans(text, SENTENCE_CHARS_MAX))
        page = passages[pages[(line - 1 + shift) % len(pages)]]
        hit = Hit(
            doc_id=page.doc_id, score=1.0, cluster=ClusterId(0), title=page.title, text=page.text
        )
        said = f"{text[start:end]} [1]"
        cited = Citing(claim.text or "", {1: hit}, 600).of_text(said)
        answers[line] = AnswerLine(
            line=line,
            status="ok",
            question=claim.text,
            answer=said,
            retrieved=(Retrieved(id=page.doc_id, score=1.0),),
            grounded=cited["grounded"],
            citations=cited["citations"],
        )
        gold[line] = Gold(text=claim.text, passages=tuple(evidence[str(claim.id)]))
    return report(gold, answers)


def test_known_evidence_scores_one_and_that_of_other_claims_almost_none() -> None:
    right = {name: each.share for name, each in evaluated(0).figures.items()}
    assert right == dict.fromkeys(right, 1.0), right
    assert {"hit_rate_at_1", "mrr", "citation_precision", "cited_passages_gold"} < set(right)
    shuffled = evaluated(7).figures
    print({name: str(each) for name, each in shuffled.items()})
    assert all(each.high < 0.1 for each in shuffled.values()), shuffled
