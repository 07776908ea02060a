"""What counts as found, right and cited, and how much one wrong citation costs."""

from __future__ import annotations

import pytest

from carpool.evaluation.judging import Gold, judge
from carpool.evaluation.report import report
from tests.evaluation.support import an_answer, cited


def test_a_wrong_citation_lowers_precision_and_recall_by_its_part() -> None:
    right = an_answer(1)
    wrong = an_answer(2, citations=(cited("a", 0), cited("b", 1, supported=False)))
    assert judge(right, Gold()).values["citation_precision"] == 1.0
    values = judge(wrong, Gold()).values
    assert (values["citation_precision"], values["citation_recall"]) == (0.5, 0.5)
    figures = report({1: Gold(), 2: Gold()}, {1: right, 2: wrong}).figures
    assert figures["citation_precision"].share == figures["citation_recall"].share == 0.75


def test_a_sentence_is_covered_by_any_citation_with_support_and_needs_no_second() -> None:
    beside = an_answer(1, citations=(cited("a", 0), cited("c", 0, supported=False), cited("b", 1)))
    values = judge(beside, Gold()).values
    assert (values["citation_precision"], values["citation_recall"]) == (2 / 3, 1.0)


def test_what_carpool_cites_covers_a_sentence_but_is_not_the_precision_of_the_model() -> None:
    found = an_answer(1, citations=(cited("a", 0, by="text"), cited("b", 1, supported=False)))
    values = judge(found, Gold()).values
    assert (values["citation_precision"], values["citation_recall"]) == (0.0, 0.5)
    unmarked = an_answer(1, citations=(cited("a", 0, by="text"),))
    assert "citation_precision" not in judge(unmarked, Gold()).values


def test_a_gold_passage_counts_from_its_place_on() -> None:
    values = judge(an_answer(1), Gold(passages=("c", "z"))).values
    hits = [values[f"hit_rate_at_{k}"] for k in (1, 3, 5, 10)]
    assert (hits, values["mrr"]) == ([0, 1, 1, 1], 1 / 3)
    assert (values["gold_passage_cited"], values["cited_passages_gold"]) == (0, 0)
    values = judge(an_answer(1), Gold(passages=("a", "z"))).values
    assert (values["gold_passage_cited"], values["cited_passages_gold"]) == (1, 0.5)


def test_markers_are_no_answer() -> None:
    assert judge(an_answer(1), Gold(answers=("1889",))).values["answer_match"] == 1.0
    assert judge(an_answer(1), Gold(answers=("1", "2"))).values["answer_match"] == 0.0
    short = an_answer(1, answer="In 1889 [1].", citations=())
    assert judge(short, Gold(answers=("1889",))).values["f1"] == pytest.approx(2 / 3)


def test_an_answer_that_failed_is_wrong_and_has_no_citations_to_judge() -> None:
    failed = an_answer(
        1, status="failed", answer=None, citations=(), retrieved=(), grounded=None, tokens=None
    )
    values = judge(failed, Gold(answers=("1889",), passages=("a",))).values
    assert set(values.values()) == {0.0}
    assert {"answer_match", "f1", "mrr", "hit_rate_at_1", "gold_passage_cited"} < set(values)
    assert not {"citation_precision", "citation_recall", "grounded"} & set(values)


def test_figures_are_of_the_lines_that_have_them() -> None:
    gold = {1: Gold(), 2: Gold(passages=("b",)), 3: Gold(answers=("1889",)), 4: Gold()}
    run = report(gold, {line: an_answer(line) for line in (1, 2, 3)})
    lines = {name: figure.lines for name, figure in run.figures.items()}
    assert lines == {
        **dict.fromkeys(("hit_rate_at_1", "hit_rate_at_3", "mrr"), 1),
        **dict.fromkeys(("answer_match", "f1"), 1),
        **dict.fromkeys(("citation_precision", "citation_recall", "grounded"), 3),
        **dict.fromkeys(("gold_passage_cited", "cited_passages_gold"), 1),
    }
    assert (run.lines, run.missing) == (3, (4,))
    # one value says nothing of the mean, and little of a share
    assert (run.figures["f1"].low, run.figures["f1"].high) == (0.0, 1.0)
    assert run.figures["answer_match"].low == pytest.approx(0.2065, abs=1e-4)
    assert run.statuses["ok"].share == 1.0
    assert run.tokens == {"input": 300, "cached": 180, "output": 30, "total": 330}
    assert run.timings_ms["total"] == pytest.approx({"p50": 80.0, "p99": 119.2})
    assert run.timings_ms["search"] == {"p50": 2.0, "p99": 2.0}


def test_no_place_behind_the_last_that_was_found_has_a_figure() -> None:
    gold = {1: Gold(passages=("b",))}
    twelve = [{"id": f"{n}", "score": 0.5} for n in range(12)]
    assert "hit_rate_at_5" not in report(gold, {1: an_answer(1)}).figures
    assert report(gold, {1: an_answer(1, retrieved=twelve)}).figures["hit_rate_at_10"].share == 0
    nothing = report(gold, {1: an_answer(1, retrieved=())}).figures
    assert nothing["hit_rate_at_1"].share == 0.0 and "hit_rate_at_3" not in nothing
