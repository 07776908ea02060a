"""Finds the sentence of a passage that supports a sentence of an answer, by their words.

The support of a sentence `a` by a sentence `s` of a passage, from 0 to 1:

    support(a, s) = sum of w(x) for x in a and s / sum of w(x) for x in a
    w(x) = ln(1 + N / df(x)), N: all sentences of the passages, df(x): how many of them have x, at
           least 1; three times as much for a number or a name, half for another word of at most
           three letters; a quarter of that for a word of the question

Words of the answer that are not in the question count most, the rare ones above all. A sentence has
the words of its passage's title too. The support is 0 where `s` lacks a number of `a`, or where the
whole passage lacks a name: a wrong year among right words is the error that matters. A name is a
word with a capital letter. The first word of `a` is one only where the passages write it with a
capital inside a sentence, and nowhere without. In a language that writes nouns with capital
letters, fewer sentences find support.

ALCE (Gao et al., 2023) asks whether a passage supports a statement, and lets a model for entailment
decide. Here the shared words decide. Right words in a wrong relation have support: a "not", swapped
names, another unit. A sentence in other words, or about two passages, has none. Costs about 0.5 ms
for two sentences and three passages.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from carpool.statements import ANSWER_CHARS_MAX, MARKER, statements
from carpool.words import WORD, is_number, stems, words
from generator.plan.citations import CITATIONS_MAX, Cited
from generator.plan.denial import denies
from generator.plan.evidence import Evidence, Sentence

SUPPORT_MIN = 0.55
"""Less is no support. Statements that mix two facts, or repeat the question, have 0.5 and a little
more; of 60 answers that were read, no right citation has less than 0.59.
"""
FACT_WEIGHT = 3.0
ASKED_WEIGHT = 0.25
SHORT_CHARS_MAX, SHORT_WEIGHT = 3, 0.5
SENTENCES_MAX = 1_000
"""Sentences of an answer and of all passages that are compared: the product is what it costs."""
NAME_CHARS_MIN = 4
"""A name of so many letters may be the beginning of another form of it: *Liberia*, *Liberian*."""

_LABELLED = re.compile(r"[:|][\s*“\"]*[A-Z](?=\w*\s+[a-z\d])")
"""A capital after a label or in a cell, before a small letter or a number: no name begins there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """A sentence of a passage supports a statement by `share`, from 0 to 1."""

    by: Sentence
    share: float


def supports(statement: str, question: str, evidence: Evidence) -> list[Support]:
    """Returns the best support of a statement by each passage that has text, the best of all first.

    Of sentences with equal shares it is the one with most words of the question, else the first.
    O(words of the statement x sentences).
    """
    found, names = words(statement), _names(statement, evidence)
    asked, numbers = stems(words(question)), frozenset(filter(is_number, found))
    sentences = evidence.sentences[:SENTENCES_MAX]
    weights = _weights(stems(found), stems(names), asked, sentences)
    total = sum(weights.values()) or 1.0
    knows = {n: all(_has(name, known) for name in names) for n, known in evidence.words.items()}
    best: dict[int, tuple[float, int, Sentence]] = {}
    for one in sentences:
        share = 0.0
        if knows[one.n] and numbers <= one.stems:
            share = sum(weight for word, weight in weights.items() if word in one.stems) / total
        ranked = (round(share, 3), len(asked & one.stems), one)
        if one.n not in best or ranked[:2] > best[one.n][:2]:
            best[one.n] = ranked
    in_order = sorted(best.values(), key=lambda each: each[:2], reverse=True)
    return [Support(by=one, share=share) for share, _, one in in_order]


def _weights(
    found: frozenset[str],
    names: frozenset[str],
    asked: frozenset[str],
    sentences: Sequence[Sentence],
) -> dict[str, float]:
    """Returns w(x) of each stem of a statement; see the module."""
    weights = {}
    for word in sorted(found):
        count = sum(word in one.stems for one in sentences)
        weight = math.log(1 + len(sentences) / max(count, 1))
        if word in names or is_number(word):
            weight *= FACT_WEIGHT
        elif len(word) <= SHORT_CHARS_MAX:
            weight *= SHORT_WEIGHT
        weights[word] = weight * (ASKED_WEIGHT if word in asked else 1.0)
    return weights


def _names(statement: str, evidence: Evidence) -> list[str]:
    """Returns the names in a statement, in small letters."""
    plain = _LABELLED.sub(lambda match: match[0].lower(), statement)
    first, *after = WORD.findall(plain) or [""]
    names = [word.casefold() for word in after if word[0].isupper() and len(word) > 1]
    is_name = first[:1].isupper() and first.casefold() in evidence.names
    return [*names, first.casefold()] if is_name else names


def _has(name: str, known: frozenset[str]) -> bool:
    """Says whether a passage with these words has a name, or another form of it."""
    if name in known:
        return True
    return len(name) >= NAME_CHARS_MIN and any(
        word.startswith(name) or (len(word) >= NAME_CHARS_MIN and name.startswith(word))
        for word in known
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Attributed:
    """Passage `n` is cited for a statement of an answer.

    `sentence`: its start and end in the answer; None: the answer has no words. `marker`: the
    model's; None: Carpool found the passage, by its words. `support`: by the best of the passage's
    sentences; None: the passage has no text.
    """

    n: int
    sentence: tuple[int, int] | None
    marker: Cited | None
    support: Support | None

    @property
    def is_supported(self) -> bool:
        """Whether the passage supports the sentence: always, without a marker."""
        return self.support is not None and self.support.share >= SUPPORT_MIN


def attribute(
    question: str, answer: str, markers: Sequence[Cited], evidence: Evidence
) -> tuple[Attributed, ...]:
    """Returns what each statement of an answer is cited for, in the order of the answer.

    A statement is a sentence; one with several markers is cut behind each but the last. `markers`:
    those of passages of the `evidence`. A marker cites its passage for each statement, since the
    marker before, that the passage supports; where it supports none of them, for the one with the
    highest support. A statement that no marker supports cites the passage that supports it best, if
    one does. At most `CITATIONS_MAX` are returned, those with support first. An answer that
    `denies` has none.
    """
    if denies(answer[:ANSWER_CHARS_MAX]):
        return ()
    question = question[:ANSWER_CHARS_MAX]
    spans = list(statements(answer))
    # of each statement, by passage, the best first
    of_each = [{one.by.n: one for one in supports(text, question, evidence)} for *_, text in spans]
    found, is_marked = list[Attributed](), set[int]()

    def add(n: int, place: int | None, marker: Cited | None) -> None:
        sentence = None if place is None else spans[place][:2]
        support = None if place is None else of_each[place].get(n)
        found.append(Attributed(n=n, sentence=sentence, marker=marker, support=support))

    for marker, places in _covered(answer, markers, [start for start, *_ in spans]):
        shares = {at: of_each[at][marker.n].share for at in places if marker.n in of_each[at]}
        held = [at for at, share in shares.items() if share >= SUPPORT_MIN]
        is_marked.update(held)
        for at in held:
            add(marker.n, at, marker)
        if not held:
            last = max(places, default=None)
            add(marker.n, max(shares, key=lambda at: (shares[at], at), default=last), marker)
    for at, by_passage in enumerate(of_each):
        best = next(iter(by_passage.values()), None)
        if at not in is_marked and best is not None and best.share >= SUPPORT_MIN:
            add(best.by.n, at, None)
    found.sort(key=lambda one: not one.is_supported)
    return tuple(sorted(found[:CITATIONS_MAX], key=_position))


def _position(one: Attributed) -> tuple[int, float]:
    return (one.sentence or (0, 0))[0], math.inf if one.marker is None else one.marker.start


def _covered(
    answer: str, markers: Sequence[Cited], starts: Sequence[int]
) -> Iterator[tuple[Cited, Sequence[int]]]:
    """Yields each marker with the places of the statements that it stands for.

    `starts`: of the statements. It stands for the one that it is in or behind, and for those before
    that have no marker. One that begins a line stands for the first of the line.
    """
    own = [_place(answer, marker.start, starts) for marker in markers]
    for marker, place in zip(markers, own, strict=True):
        begin = max((other + 1 for other in own if other < place), default=0)
        yield marker, range(min(begin, len(starts)), min(place + 1, len(starts)))


def _place(answer: str, marker: int, starts: Sequence[int]) -> int:
    after = bisect_right(starts, marker)
    line, rest = answer.rfind("\n", 0, marker) + 1, answer.find("\n", marker)
    begins_line = not WORD.search(MARKER.sub(" ", answer[line:marker]))
    if begins_line and after < len(starts) and (rest < 0 or starts[after] < rest):
        return after
    return max(0, after - 1)
