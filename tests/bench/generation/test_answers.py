"""Which answers count as right, as repeating, and as tokens beyond the text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.core.accounting import account
from bench.generation.answer_figures import (
    AskedRow,
    figures_of,
    repeats_itself,
    without_markers,
)
from bench.generation.answers import AnswersResult, judge, promises_of, read_earlier
from bench.generation.gold import read_gold
from carpool.errors import ConfigError
from schemas.answer import Answer, Retrieved, Usage
from schemas.record import ClusterId
from schemas.retrieval import Hit
from tests.records import a_query, a_retrieval

GOLD = read_gold()[0]


def row(**given: object) -> AskedRow:
    fields: dict[str, object] = {"question_id": "g", "question": "q?", "status": "ok", **given}
    return msgspec.convert(fields, AskedRow)


def an_answer(text: str | None, *, in_prompt: bool = True) -> Answer:
    return Answer(
        query_id="q",
        status="ok",
        is_final=True,
        replayed=False,
        attempts=1,
        citations=(),
        retrieved=(Retrieved(id="doc-a", score=0.9, in_prompt=in_prompt),),
        answer=text,
        finish_reason="stop",
        usage=Usage(input_tokens=7, output_tokens=5),
    )


def found(text: str) -> object:
    hit = Hit(doc_id="doc-a", score=0.9, cluster=ClusterId(1), title="A title", text=text)
    return a_retrieval(a_query(query_id="q"), (hit,))


def test_four_words_that_occur_three_times_are_a_repetition() -> None:
    assert repeats_itself("He is the King of it. He is the king, of it! He IS THE KING.")
    assert not repeats_itself("he is the king, he is the king, he is the queen")


def test_markers_are_no_text() -> None:
    assert without_markers("In 1889 [1]. By Eiffel [2, 3].") == "In 1889. By Eiffel."


def test_gold_counts_where_the_prompt_had_the_passage() -> None:
    gold = GOLD.answers[0]
    assert judge(GOLD, an_answer("x"), found(f"it is {gold}"), 600).gold_in_prompt
    assert not judge(GOLD, an_answer("x"), found("x " * 300 + gold), 600).gold_in_prompt
    left_out = an_answer("x", in_prompt=False)
    assert not judge(GOLD, left_out, found(f"it is {gold}"), 600).gold_in_prompt


def test_gold_in_the_answer_is_found() -> None:
    right = judge(GOLD, an_answer(f"It is {GOLD.answers[0]}."), None, 600)
    assert (right.gold_in_answer, right.gold_in_quote, right.output_tokens) == (True, False, 5)
    assert judge(GOLD, None, None, 600).status == "none"


def test_tokens_beyond_the_text_are_a_share_of_the_output() -> None:
    rows = [
        row(answer="a b", output_tokens=10, text_tokens=6),
        row(answer="a", output_tokens=10, text_tokens=9),
        row(status="failed"),
    ]
    figures = figures_of(rows)
    assert figures.beyond_text == pytest.approx(0.25)
    assert (figures.unanswered.count, figures.repeats.total) == (1, 2)
    assert figures_of([row(answer="a", output_tokens=3)]).beyond_text is None


def result_of(label: str, right: int) -> AnswersResult:
    rows = tuple(row(answer="a", gold_in_answer=number < right) for number in range(10))
    return AnswersResult(
        label=label,
        llm_model="m",
        accounting=account(["q"], ["q"]),
        figures=figures_of(rows),
        rows=rows,
    )


def test_a_run_is_compared_with_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_bytes(msgspec.json.encode({"results": result_of("before", 3), "benchmark": "a"}))
    before = read_earlier(path)
    name = "gold in answer at least 0.15 more than before"
    assert promises_of(result_of("now", 5), before)[name]
    assert not promises_of(result_of("now", 4), before)[name]
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"before\.json is not the JSON"):
        read_earlier(path)
