"""An answer as the benchmark judges it, and the figures over many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

import msgspec

from bench.answers.gold import GoldQuestion
from carpool.evaluation.gold import f1, has_gold
from carpool.evaluation.judging import CitedRow, cited_rows, supported_sentences
from carpool.evaluation.shares import Share, mean_of, share_of
from carpool.statements import statements, without_markers
from schemas.answer import Answer

LENGTH = "length"
NOISE = {
    "no word": re.compile(r"\A[\W_]*\Z"),
    "address": re.compile(r"\bhttps?:|\b[\w-]+\.(?:com|net|org|edu|gov|io)\b"),
    "sentence with a small letter": re.compile(r"(?<!\b[a-zA-Z])[.!?]\s+[a-z]{2,}\b"),
    "row of digits": re.compile(r"\d{9}|(?:\b\d+\b[\s.,:/-]*){7}"),
    "phrase three times": re.compile(r"\b(\w+(?:\W+\w+){2,9})\b(?:.*?\b\1\b){2}", re.DOTALL),
}
"""What counts as noise in an answer, by the names under which it is reported."""


class AskedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A question and what came back. `gold`: the id of its passage; "": no answer is known.

    `gold_*` says whether it contains one of the gold answers. `sentences` counts those of the
    answer. `retrieved` has the ids of what was found. The server counted `output_tokens`;
    `text_tokens` are those of the text without markers.
    """

    question_id: str
    question: str
    status: str
    answer: str = ""
    quote: str = ""
    gold: str = ""
    gold_in_answer: bool = False
    gold_in_quote: bool = False
    f1: float = 0.0
    grounded: bool | None = None
    sentences: int = 0
    retrieved: tuple[str, ...] = ()
    citations: tuple[CitedRow, ...] = ()
    noise: tuple[str, ...] = ()
    finish_reason: str = ""
    steps: int = 0
    output_tokens: int = 0
    text_tokens: int = 0

    @property
    def supported(self) -> frozenset[str]:
        """The passages that support a sentence."""
        return frozenset(one.doc_id for one in self.citations if one.quote)


def judge(gold: GoldQuestion, answer: Answer | None) -> AskedRow:
    """Returns the row of a question; `answer` None: it has none."""
    if answer is None:
        return AskedRow(question_id=gold.id, question=gold.question, status="none")
    text = answer.answer or ""
    quote = "\n".join(each.text for each in answer.quotes)
    return AskedRow(
        question_id=gold.id,
        question=gold.question,
        status=answer.status,
        answer=text,
        quote=quote,
        gold=gold.passage,
        gold_in_answer=has_gold(text, gold.answers),
        gold_in_quote=has_gold(quote, gold.answers),
        f1=f1(without_markers(text), gold.answers),
        grounded=answer.grounded,
        sentences=sum(1 for _ in statements(text)),
        retrieved=tuple(each.id for each in answer.retrieved),
        citations=cited_rows(text, answer.citations),
        noise=noise_in(text),
        finish_reason=answer.finish_reason or "",
        steps=len(answer.steps),
        output_tokens=answer.usage.output_tokens if answer.usage else 0,
    )


def noise_in(text: str) -> tuple[str, ...]:
    """Returns the kinds of noise in an answer; see `NOISE`."""
    plain = without_markers(text)
    return tuple(name for name, pattern in NOISE.items() if pattern.search(plain))


def figures_of(rows: Sequence[AskedRow]) -> dict[str, Any]:
    """Returns the figures over all rows; those that need gold answers are None without any.

    `beyond_text`: the share of output tokens that are not tokens of the text, but markers and ends.
    Of a workflow, the tokens of its steps are beyond the text, too. `marked`: answers with a marker
    of the model. `gold_cited`: of the answers with a gold answer in the text, those with support by
    the gold passage. `citation_precision`: of the passages that support an answer, the gold ones.
    `markers_supported`: the markers with support (ALCE's citation precision, by overlap).
    `sentences_supported`: the sentences with support (its citation recall).
    """
    answered = [row for row in rows if row.answer]
    known = [row for row in rows if row.gold]
    citations = [one for row in rows for one in row.citations]
    output_tokens = sum(row.output_tokens for row in answered)
    text_tokens = sum(row.text_tokens for row in answered)

    def of_known(yes: Iterable[bool]) -> Share | None:
        return share_of(yes) if known else None

    return {
        "gold_in_answer": of_known(row.gold_in_answer for row in known),
        "gold_in_answer_or_quote": of_known(
            row.gold_in_answer or row.gold_in_quote for row in known
        ),
        "f1": mean_of([row.f1 for row in known]) if known else None,
        "grounded": share_of(bool(row.grounded) for row in rows),
        "marked": share_of(any(one.by == "model" for one in row.citations) for row in rows),
        "markers_supported": share_of(bool(one.quote) for one in citations if one.by == "model"),
        "sentences_supported": share_of(
            place < supported_sentences(row.citations)
            for row in answered
            for place in range(row.sentences)
        ),
        "gold_cited": of_known(row.gold in row.supported for row in known if row.gold_in_answer),
        "citation_precision": of_known(one == row.gold for row in known for one in row.supported),
        "partial": share_of(row.status == "partial" for row in rows),
        "at_limit": share_of(row.finish_reason == LENGTH for row in rows),
        "noise": share_of(bool(row.noise) for row in rows),
        "words": mean([len(row.answer.split()) for row in answered] or [0]),
        "output_tokens": output_tokens / max(1, len(answered)),
        "beyond_text": 1 - text_tokens / output_tokens if output_tokens else 0.0,
    }
