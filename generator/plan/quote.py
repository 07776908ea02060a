"""Chooses the quote of an answer: the sentence of a passage that shares most with the question.

The rule: the words of the question are weighted by their inverse document frequency over the
sentences of the passages, so that frequent words count little. A sentence has the words that it
contains, and those of its passage's title. Its score is the weight of the question's words that it
has, as a share of all, less `RANK_COST` for each passage before its own. The highest score wins; of
equal ones the first.

The rule knows no language. It is wrong where the answer is in another sentence than the question's
words.
"""

from __future__ import annotations

import math

from carpool.words import stems, words
from generator.plan.evidence import Evidence, Sentence

RANK_COST = 0.1
"""What a passage loses for each better one: a search has ranked them by more than words."""
QUESTION_CHARS_MAX = 1_000
"""The beginning of the question that is read."""


def choose_quote(question: str, evidence: Evidence) -> Sentence | None:
    """Returns the quote; None where the passages have no text.

    Without words in common it is the first sentence of the first passage. O(n).
    """
    sentences = evidence.sentences
    if not sentences:
        return None
    # idf(w) = ln(1 + N / df(w)): N sentences, df(w) of which have the word
    weights = {
        word: math.log(1 + len(sentences) / count)
        for word in sorted(stems(words(question[:QUESTION_CHARS_MAX])))
        if (count := sum(word in one.stems for one in sentences))
    }
    total = sum(weights.values()) or 1.0

    def score(one: Sentence) -> float:
        shared = sum(weight for word, weight in weights.items() if word in one.stems)
        return round(shared / total - RANK_COST * evidence.ranks[one.n], 9)

    return max(sentences, key=score)
