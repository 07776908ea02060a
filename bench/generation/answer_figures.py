"""From answers to figures: gold answers found, repeats, and tokens beyond the text. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from bench.core.wilson import Share, share_of

NGRAM_WORDS = 4
REPEATS = 3
"""An answer repeats itself where one sequence of `NGRAM_WORDS` words occurs so often in it."""
_WORD = re.compile(r"\w+(?:['’]\w+)?")
_MARKER = re.compile(r"\s*\[\s*\d{1,3}(?:\s*[,;]\s*\d{1,3})*\s*\]", re.ASCII)


class AskedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A question and what came back. `gold_*`: whether it contains one of the gold answers.

    `output_tokens`: as the server counted. `text_tokens`: those of the text without markers; None
    where the server cannot tokenize.
    """

    question_id: str
    question: str
    status: str
    answer: str = ""
    quote: str = ""
    cited: int = 0
    finish_reason: str | None = None
    gold_in_answer: bool = False
    gold_in_quote: bool = False
    gold_in_prompt: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    text_tokens: int | None = None

    @property
    def is_answered(self) -> bool:
        """Whether there is a text."""
        return bool(self.answer)


class AnswerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run.

    `gold_in_prompt` is the ceiling of the others. `repeats` is a share of the answered questions.
    `beyond_text`: the share of output tokens that are not tokens of the text (form, markers, the
    end); None where the server cannot tokenize.
    """

    questions: int
    gold_in_answer: Share
    gold_in_answer_or_quote: Share
    gold_in_prompt: Share
    cited: Share
    repeats: Share
    unanswered: Share
    cut_off: int
    input_tokens: int
    output_tokens: int
    text_tokens: int | None
    beyond_text: float | None


def repeats_itself(text: str) -> bool:
    """Returns whether a sequence of four words occurs three times or more; case is ignored."""
    words = _WORD.findall(text.casefold())
    grams = Counter(zip(*(words[place:] for place in range(NGRAM_WORDS)), strict=False))
    return max(grams.values(), default=0) >= REPEATS


def without_markers(text: str) -> str:
    """Returns the text without markers such as `[1]`, which are form and not content."""
    return _MARKER.sub("", text)


def figures_of(rows: Sequence[AskedRow]) -> AnswerFigures:
    """Returns the figures over all rows."""
    answered = [row for row in rows if row.is_answered]
    output_tokens = sum(row.output_tokens for row in answered)
    text_tokens: int | None = None
    if answered and all(row.text_tokens is not None for row in answered):
        text_tokens = sum(row.text_tokens or 0 for row in answered)
    return AnswerFigures(
        questions=len(rows),
        gold_in_answer=share_of(row.gold_in_answer for row in rows),
        gold_in_answer_or_quote=share_of(row.gold_in_answer or row.gold_in_quote for row in rows),
        gold_in_prompt=share_of(row.gold_in_prompt for row in rows),
        cited=share_of(row.cited > 0 for row in rows),
        repeats=share_of(repeats_itself(row.answer) for row in answered),
        unanswered=share_of(not row.is_answered for row in rows),
        cut_off=sum(row.finish_reason == "length" for row in answered),
        input_tokens=sum(row.input_tokens for row in answered),
        output_tokens=output_tokens,
        text_tokens=text_tokens,
        beyond_text=None
        if text_tokens is None or not output_tokens
        else (output_tokens - text_tokens) / output_tokens,
    )
