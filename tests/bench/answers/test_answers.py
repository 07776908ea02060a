"""Which answers count as right, as repeating, and as tokens beyond the text."""

from __future__ import annotations

import msgspec
import pytest

from bench.answers.gold import read_gold
from bench.answers.run import AskedRow, figures_of, judge, promises_of, without_markers
from bench.core.accounting import account
from schemas.answer import Answer, Usage

GOLD = read_gold()[0]


def row(**given: object) -> AskedRow:
    fields: dict[str, object] = {"question_id": "g", "question": "q?", "status": "ok", **given}
    return msgspec.convert(fields, AskedRow)


def an_answer(text: str) -> Answer:
    return Answer(
        query_id="q",
        status="ok",
        is_final=True,
        replayed=False,
        attempts=1,
        citations=(),
        retrieved=(),
        answer=text,
        finish_reason="stop",
        usage=Usage(input_tokens=7, output_tokens=5),
    )


def test_markers_are_no_text() -> None:
    assert without_markers("In 1889 [1]. By Eiffel [2, 3].") == "In 1889. By Eiffel."


def test_gold_in_the_answer_is_found() -> None:
    right = judge(GOLD, an_answer(f"It is {GOLD.answers[0]}."))
    assert (right.gold_in_answer, right.gold_in_quote, right.output_tokens) == (True, False, 5)
    assert judge(GOLD, None).status == "none"


def test_tokens_beyond_the_text_are_a_share_of_the_output() -> None:
    rows = [
        row(answer="a b", output_tokens=10, text_tokens=6),
        row(answer="a", output_tokens=10, text_tokens=9),
        row(status="failed"),
    ]
    assert figures_of(rows).beyond_text == pytest.approx(0.25)


def test_promises_are_of_all_questions() -> None:
    rows = tuple(
        row(answer="a", output_tokens=9, text_tokens=8, gold_in_quote=number < 7)
        for number in range(10)
    )
    kept = promises_of(account(["q"], ["q"]), figures_of(rows))
    assert list(kept.values()) == [True, False, True]
