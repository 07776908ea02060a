"""Chooses the quote of an answer: the sentence of a passage that shares most with the question.

The rule: the words of the question are weighted by their inverse document frequency over the
sentences of the passages, so that frequent words count little. A sentence has the words that it
contains, and those of its passage's title, which every sentence of the passage speaks of. Its score
is the weight of the question's words that it has, as a share of all, less `RANK_COST` for each
passage before its own. The highest score wins; of equal ones the first.

Words are compared as `generator.plan.words` does. The rule knows no language. It is wrong where the
answer is in another sentence than the question's words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from generator.plan.sentences import sentence_spans
from generator.plan.words import stems, words

RANK_COST = 0.1
"""What a passage loses for each better one: a search has ranked them by more than words."""
PASSAGE_CHARS_MAX = 20_000
QUESTION_CHARS_MAX = 1_000
"""The beginning of a passage and of the question that is read, so that long ones cost no more."""
QUOTE_CHARS_MAX = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotedSentence:
    """`text[start:end]` of passage `n`, from 1."""

    n: int
    start: int
    end: int


def choose_quote(
    question: str, passages: Sequence[tuple[str, str]], *, chars_max: int = QUOTE_CHARS_MAX
) -> QuotedSentence | None:
    """Returns the quote; None where the passages have no text.

    `passages`: title and text of each, best first. A sentence of more than `chars_max` characters
    counts as several, cut at words. Without words in common it is the first sentence of the first
    passage. O(n).
    """
    sentences = [
        (n, start, end, stems(words(text[start:end])) | stems(words(title)))
        for n, (title, text) in enumerate(passages, start=1)
        for start, end in sentence_spans(text[:PASSAGE_CHARS_MAX], chars_max)
    ]
    if not sentences:
        return None
    asked = stems(words(question[:QUESTION_CHARS_MAX]))
    # idf(w) = ln(1 + N / df(w)): N sentences, df(w) of which have the word
    weights = {
        word: math.log(1 + len(sentences) / count)
        for word in sorted(asked)
        if (count := sum(word in words for *_, words in sentences))
    }
    total = sum(weights.values()) or 1.0

    def score(sentence: tuple[int, int, int, frozenset[str]]) -> float:
        n, _, _, words = sentence
        shared = sum(weight for word, weight in weights.items() if word in words)
        return round(shared / total - RANK_COST * (n - 1), 9)

    n, start, end, _ = max(sentences, key=score)
    return QuotedSentence(n=n, start=start, end=end)
