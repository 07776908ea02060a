"""Answers as people see them, and pages of services as they are read."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console, RenderableType

from cli.answers import answer_text, has_evidence, stages_of, text_after, timing_table
from cli.http import listed, missing_of, parse_metrics
from cli.running import summary
from schemas.answer import Answer, Citation, InventedCitation, Quote, Retrieved, TextSpan
from tests.records import an_answer


def cited(*doc_ids: str, given: tuple[str, ...] = ("a", "b"), **more: float) -> Answer:
    return an_answer(
        answer=" In 1889 [1]. ",
        citations=tuple(
            Citation(n=n, doc_id=doc_id, title=doc_id.upper())
            for n, doc_id in enumerate(doc_ids, start=1)
        ),
        retrieved=tuple(Retrieved(id=doc_id, score=0.5) for doc_id in given),
        timings_ms=more,
    )


def shown(what: RenderableType) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_the_demo_counts_answers_with_passages_whether_or_not_the_model_cites_one() -> None:
    late = an_answer(status="expired")
    assert has_evidence(cited()) and not has_evidence(cited(given=())) and not has_evidence(late)
    quoted = msgspec.structs.replace(
        cited(), status="partial", quotes=(Quote(n=1, doc_id="a", start=0, end=2, text="It"),)
    )
    span = TextSpan(start=0, end=1)
    supported = tuple(
        msgspec.structs.replace(
            cited(),
            grounded=True,
            citations=(Citation(n=1, doc_id="a", by=by, quote=span, support=1.0),),
        )
        for by in ("model", "text")
    )
    assert summary([*supported, quoted, late], 5) == (
        "3 of 5 answered from passages (1 cut short). 2 have a passage that supports them (1 by a "
        "marker of the model), 1 show a quote."
    )


@pytest.mark.parametrize(
    ("pieces", "after"),
    [
        ("", "It was built in 1889 in Paris."),
        ("It was built", " in 1889 in Paris."),
        (" It was built in 1889 in Paris.\n", ""),
        (
            "It was built in 1889 in Paris. It was built in",
            "\n(the text repeats itself; the answer ends with “… built in 1889 in Paris.”)",
        ),
        ("It is", "\nIt was built in 1889 in Paris."),
    ],
)
def test_after_its_pieces_only_what_they_lack_of_an_answer_is_shown(
    pieces: str, after: str
) -> None:
    answer = msgspec.structs.replace(cited("a"), answer=" It was built in 1889 in Paris. ")
    assert text_after(pieces, answer).plain == after


def test_an_answer_is_shown_with_what_it_is_checked_by() -> None:
    old = msgspec.structs.replace(cited("a"), invented_citations=(InventedCitation(n=7),))
    assert "  [1] A  (a)\n  [7] invented: the prompt has no such passage" in shown(answer_text(old))
    span, url = TextSpan(start=0, end=9), "https://a.example"
    answer = msgspec.structs.replace(
        cited(),
        grounded=True,
        quotes=(Quote(n=1, doc_id="a", start=0, end=9, text="So it is.", title="A"),),
        citations=(
            Citation(n=1, doc_id="a", by="model", title="A", snippet="It is so.", quote=span),
            Citation(n=1, doc_id="a", by="model", title="A", snippet="It is so.", quote=span),
            Citation(n=2, doc_id="b", by="model", title="B", snippet="x", support=0.1),
            Citation(n=2, doc_id="b", by="text", snippet="Or so.", url=url, quote=span),
        ),
    )
    assert shown(answer_text(answer)) == (
        "In 1889 [1].\n"
        "  [1] “It is so.”  A  (a)\n"
        "  [2] B  (b)  no sentence of it supports the answer\n"
        "  source “Or so.”  b  (https://a.example)\n"
        "  quote “So it is.”  A  (a)\n"
    )
    same = msgspec.structs.replace(answer, answer="So it is.")
    assert "quote" not in shown(answer_text(same)), "the answer is the quote"
    none = msgspec.structs.replace(cited(), grounded=False)
    assert (
        "no passage supports this answer, or it says so itself; the model was given: a, b"
        in shown(answer_text(none))
    )


def test_stages_stand_in_the_order_in_which_they_happen() -> None:
    answers = [cited(total=9, search=3, kafka_wait=1), cited(total=9, brand_new=2, decode=4)]
    assert stages_of(answers) == ("kafka_wait", "search", "decode", "brand_new", "total")
    assert "1,234.5" in shown(timing_table([cited(total=1234.5)]))


def test_pages_of_services_are_read_whatever_they_say() -> None:
    text = '# HELP x y\ncarpool_a_total{status="ok",x="a\\"b"} 3.0\ncarpool_b 1e3\n\nnot a sample\n'
    assert parse_metrics(text) == {
        ("carpool_a_total", (("status", "ok"), ("x", 'a\\"b'))): 3.0,
        ("carpool_b", ()): 1000.0,
    }
    assert missing_of(b'{"ready":false,"missing":["index","model"]}') == ["index", "model"]
    assert listed(b'{"ready":true,"missing":[],"notes":["query 1 waits"]}', "notes") == [
        "query 1 waits"
    ]
    assert missing_of(b"<html>") == missing_of(b"[]") == ["not ready"]
