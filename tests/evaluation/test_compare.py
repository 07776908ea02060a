"""Two runs: the changed lines and no others, down to the passages."""

from __future__ import annotations

import pytest

from carpool.evaluation.judging import Gold
from carpool.evaluation.report import compare
from tests.evaluation.support import TEXT, an_answer, cited

GOLD = {line: Gold(answers=("1889",), passages=("a",)) for line in range(1, 9)}


def test_equal_runs_differ_in_nothing() -> None:
    run = {line: an_answer(line) for line in GOLD}
    # how long it took, and what it cost, is no difference of a line
    other = {line: an_answer(line, timings_ms={"total": 1.0}, tokens=None) for line in GOLD}
    found = compare(GOLD, run, other)
    assert found.changes == ()
    assert {each.share for each in found.differences.values()} == {0.0}
    assert (found.before.tokens["total"], found.after.tokens["total"]) == (880, 0)


def test_each_changed_line_is_named_with_what_changed() -> None:
    first = {line: an_answer(line) for line in GOLD}
    found_others = [{"id": each, "score": 0.5} for each in "bd"]
    second = first | {
        2: an_answer(2, status="partial"),
        3: an_answer(3, retrieved=found_others),
        5: an_answer(5, citations=(cited("a", 0, supported=False), cited("c", 1))),
        7: an_answer(7, answer=TEXT.replace("1889", "1898")),
    }
    found = compare(GOLD, first, second)
    wrong = TEXT.replace("1889", "1898")
    f1 = pytest.approx(2 / 9)
    assert {each.line: each.differs for each in found.changes} == {
        2: {"status": ("ok", "partial")},
        3: {"retrieved": (["a", "b", "c"], ["b", "d"])},
        5: {"citations": (["a", "b"], ["a ?", "c"])},
        7: {"answer": (TEXT, wrong), "answer_match": (1.0, 0.0), "f1": (f1, 0.0)},
    }
    assert found.differences["hit_rate_at_1"].share == pytest.approx(-1 / 8)
    assert found.differences["citation_precision"].share == pytest.approx(-1 / 16)
    assert found.differences["answer_match"].lines == 8


def test_only_lines_of_both_runs_count() -> None:
    first = {line: an_answer(line) for line in (1, 2, 3)}
    second = {line: an_answer(line, answer=None, citations=()) for line in (3, 4)}
    found = compare(GOLD, first, second)
    assert found.before.missing == found.after.missing == (1, 2, 4, 5, 6, 7, 8)
    assert (found.before.lines, found.after.lines) == (1, 1)
    assert [each.line for each in found.changes] == [3]
    # no answer, no citation of the model: the difference of precision is of no pair
    assert "citation_precision" not in found.differences
    assert found.differences["answer_match"].share == -1.0


def test_a_passage_that_moved_is_a_change() -> None:
    turned = [{"id": each, "score": 0.5} for each in "bac"]
    found = compare(GOLD, {1: an_answer(1)}, {1: an_answer(1, retrieved=turned)})
    assert found.changes[0].differs == {"retrieved": (["a", "b", "c"], ["b", "a", "c"])}
    assert found.differences["mrr"].share == -0.5
