"""From answers to figures: gold answers found, and tokens beyond the text. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from bench.core.wilson import Share, share_of

_MARKER = re.compile(r"\s*\[\s*\d{1,3}(?:\s*[,;]\s*\d{1,3})*\s*\]", re.ASCII)


class AskedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A question and what came back. `gold_*`: whether it contains one of the gold answers.

    `output_tokens`: as the server counted. `text_tokens`: those of the text without markers.
    """

    question_id: str
    question: str
    status: str
    answer: str = ""
    quote: str = ""
    cited: int = 0
    gold_in_answer: bool = False
    gold_in_quote: bool = False
    output_tokens: int = 0
    text_tokens: int = 0


class AnswerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run.

    `beyond_text`: the share of output tokens that are not tokens of the text, but of its form,
    markers and end.
    """

    gold_in_answer: Share
    gold_in_answer_or_quote: Share
    cited: Share
    beyond_text: float


def without_markers(text: str) -> str:
    """Returns the text without markers such as `[1]`, which are form and not content."""
    return _MARKER.sub("", text)


def figures_of(rows: Sequence[AskedRow]) -> AnswerFigures:
    """Returns the figures over all rows."""
    answered = [row for row in rows if row.answer]
    output_tokens = sum(row.output_tokens for row in answered)
    text_tokens = sum(row.text_tokens for row in answered)
    return AnswerFigures(
        gold_in_answer=share_of(row.gold_in_answer for row in rows),
        gold_in_answer_or_quote=share_of(row.gold_in_answer or row.gold_in_quote for row in rows),
        cited=share_of(row.cited > 0 for row in rows),
        beyond_text=1 - text_tokens / output_tokens if output_tokens else 0.0,
    )
