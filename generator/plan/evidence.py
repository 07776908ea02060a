"""The sentences of passages with their words: what quotes and citations are chosen from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from carpool.sentences import SENTENCE_CHARS_MAX, sentence_spans
from carpool.words import stems, words

PASSAGE_CHARS_MAX = 20_000
"""The beginning of a passage that is read, so that long ones cost no more."""
_SMALL = re.compile(r"\b[^\W\d_A-ZÀ-ÖØ-ÞΑ-ΩЀ-Я]\w*")
_CAPITAL = re.compile(r"(?<=[\w,;:)] )[A-ZÀ-ÖØ-ÞΑ-ΩЀ-Я]\w+")
"""Words with a small letter, and with a capital one inside a sentence."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of passage `n`, at `text[start:end]`.

    `stems`: those of its words and of the words of the title, of which every sentence speaks.
    """

    n: int
    start: int
    end: int
    stems: frozenset[str]


class Evidence:
    """The passages of an answer, read once. Not thread-safe."""

    def __init__(
        self, passages: Mapping[int, tuple[str, str]], *, chars_max: int = SENTENCE_CHARS_MAX
    ) -> None:
        """`passages`: title and text by number, best first.

        A sentence of more than `chars_max` characters counts as several, cut at words.
        """
        self._passages = {
            n: (title, text[:PASSAGE_CHARS_MAX]) for n, (title, text) in passages.items()
        }
        self.ranks = {n: rank for rank, n in enumerate(passages)}
        """The place of each passage among all, from 0."""
        self.words: dict[int, frozenset[str]] = {}
        """All words of each passage, in small letters."""
        self.sentences: list[Sentence] = []
        for n, (title, text) in self._passages.items():
            all_words = words(title)
            of_title = stems(all_words)
            for start, end in sentence_spans(text, chars_max):
                found = words(text[start:end])
                all_words += found
                self.sentences.append(Sentence(n, start, end, of_title | stems(found)))
            self.words[n] = frozenset(all_words)

    @cached_property
    def names(self) -> frozenset[str]:
        """Words of titles, and those with a capital letter inside a sentence, that the passages
        never write in small letters.
        """
        small, capital = set[str](), set[str]()
        for title, text in self._passages.values():
            small.update(_SMALL.findall(text))
            capital.update(words(title), map(str.casefold, _CAPITAL.findall(text)))
        return frozenset(capital - small)
