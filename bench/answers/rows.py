"""An answer as the benchmark judges it, and the figures over many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import Any

import msgspec

from bench.answers.gold import GoldQuestion, f1, has_gold
from carpool.statements import statements, without_markers
from schemas.answer import Answer

LENGTH = "length"
Z_95 = 1.959964
"""The number of standard deviations around the mean that hold 95 % of a normal distribution."""
NOISE = {
    "no word": re.compile(r"\A[\W_]*\Z"),
    "address": re.compile(r"\bhttps?:|\b[\w-]+\.(?:com|net|org|edu|gov|io)\b"),
    "sentence with a small letter": re.compile(r"(?<!\b[a-zA-Z])[.!?]\s+[a-z]{2,}\b"),
    "row of digits": re.compile(r"\d{9}|(?:\b\d+\b[\s.,:/-]*){7}"),
    "phrase three times": re.compile(r"\b(\w+(?:\W+\w+){2,9})\b(?:.*?\b\1\b){2}", re.DOTALL),
}
"""What counts as noise in an answer, by the names under which it is reported."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The true share is between `low` and `high` in 95 of 100 such runs."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        """Returns the share and its interval, such as `0.38 (0.29 to 0.48)`."""
        return f"{self.share:.2f} ({self.low:.2f} to {self.high:.2f})"


def share_of(yes: Iterable[bool]) -> Share:
    """Returns the share of True with Wilson's score interval; 0 to 1 where there are no values.

    Wilson's interval, unlike the normal one, holds for shares near 0 and 1 and for few values.
    """
    values = list(yes)
    count, total = sum(values), len(values)
    if not total:
        return Share(share=0.0, low=0.0, high=1.0)
    share, z2 = count / total, Z_95 * Z_95
    # (p + z^2/2n ± z * sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    middle = share + z2 / (2 * total)
    half = Z_95 * sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    scale = 1 + z2 / total
    low, high = (middle - half) / scale, (middle + half) / scale
    return Share(share=share, low=max(0.0, low), high=min(1.0, high))


def mean_of(values: Sequence[float]) -> Share:
    """Returns the mean of values from 0 to 1 with its normal 95 % interval."""
    if len(values) < 2:
        return Share(share=sum(values), low=0.0, high=1.0)
    middle, half = mean(values), Z_95 * stdev(values) / sqrt(len(values))
    return Share(share=middle, low=max(0.0, middle - half), high=min(1.0, middle + half))


class CitedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A citation: whose, of which passage, for which sentence, by which quote ("": by none)."""

    by: str
    doc_id: str
    sentence: str = ""
    quote: str = ""
    support: float = 0.0


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
        citations=tuple(
            CitedRow(
                by=one.by or "model",
                doc_id=one.doc_id,
                sentence=text[one.sentence.start : one.sentence.end] if one.sentence else "",
                quote=one.snippet if one.quote else "",
                support=one.support or 0.0,
            )
            for one in answer.citations
        ),
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
            place < len({one.sentence for one in row.citations if one.quote})
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
