"""Which answers count as right, cited and noisy, and which tokens as beyond the text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.answers.gold import read_gold
from bench.answers.rows import AskedRow, figures_of, judge, noise_in
from bench.answers.run import promises_of
from bench.answers.support import judged_threshold
from bench.core.accounting import account
from carpool.evaluation.shares import Share
from carpool.statements import without_markers
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
    assert figures_of(rows)["beyond_text"] == pytest.approx(0.25)


def test_citations_are_counted_by_answers_by_passages_and_by_sentences() -> None:
    def by(who: str, doc_id: str, sentence: str, quote: str = "") -> dict[str, str]:
        return {"by": who, "doc_id": doc_id, "sentence": sentence, "quote": quote}

    figures = figures_of(
        [
            row(
                answer="A. B.",
                gold="g",
                gold_in_answer=True,
                grounded=True,
                sentences=2,
                citations=[
                    by("model", "x", "A."),
                    by("text", "g", "A.", "q"),
                    by("text", "g", "B.", "r"),
                ],
            ),
            row(
                answer="C. D.",
                gold="h",
                grounded=True,
                sentences=2,
                citations=[by("model", "x", "C.", "q"), by("model", "h", "C.", "q")],
            ),
            row(answer="E.", gold="i", gold_in_answer=True, grounded=False, sentences=1),
            row(answer="F.", sentences=1, finish_reason="length", status="partial"),
        ]
    )
    shares = {name: each.share for name, each in figures.items() if isinstance(each, Share)}
    assert shares == pytest.approx(
        {
            "gold_in_answer": 2 / 3,
            "gold_in_answer_or_quote": 2 / 3,
            "f1": 0.0,
            "grounded": 1 / 2,
            "marked": 1 / 2,
            "markers_supported": 2 / 3,
            "sentences_supported": 3 / 6,
            "gold_cited": 1 / 2,
            "citation_precision": 2 / 3,
            "partial": 1 / 4,
            "at_limit": 1 / 4,
            "noise": 0.0,
        }
    )


@pytest.mark.parametrize(
    ("text", "noise"),
    [
        ("It is 6.5 m high, e.g. in Rome [1].", ()),
        ("Born 4 May 1954 in St. Louis. He won 23 medals.", ()),
        ("[1]", ("no word",)),
        ("In a game of dice. icts.net. icts.net.", ("address", "sentence with a small letter")),
        ("It is so. ithink: it is.", ("sentence with a small letter",)),
        ("It is 0000000000 m.", ("row of digits",)),
        ("The answer is: The answer is: The answer is: so", ("phrase three times",)),
    ],
)
def test_noise_is_told_by_kind(text: str, noise: tuple[str, ...]) -> None:
    assert noise_in(text) == noise


def test_answers_have_support_in_their_own_passage_and_in_no_other(tmp_path: Path) -> None:
    gold = read_gold()[:8]
    corpus = [
        {"id": each.passage, "title": each.id, "text": f"{each.question[:-1]}: {each.answers[0]}."}
        for each in gold
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, corpus)))
    rows = [
        row(
            question_id=each.id,
            answer=f"It is {each.answers[0]}.",
            gold_in_answer=True,
            retrieved=[one.passage for one in gold],
        )
        for each in gold
    ]
    judged = judged_threshold(path, gold, rows)
    shares = [each.share for each in judged.values() if isinstance(each, Share)]
    assert shares == [1, 1, 1]


def test_promises_are_of_all_questions() -> None:
    rows = tuple(
        row(answer="a", gold="g", output_tokens=9, text_tokens=8, gold_in_quote=number < 7)
        for number in range(10)
    )
    kept = promises_of(account(["q"], ["q"]), figures_of(rows))
    assert list(kept.values()) == [True, False, True]
