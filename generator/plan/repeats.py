"""Finds out, while an answer is written, that it repeats itself.

The rule: an answer repeats itself where a sequence of `NGRAM_WORDS` words occurs for the
`OCCURRENCES_MAX`-th time, or for the second time immediately after the first. Case does not count.
What the model writes from there on costs tokens and says nothing new.
"""

from __future__ import annotations

import re

NGRAM_WORDS = 4
OCCURRENCES_MAX = 3
_WORD = re.compile(r"\w+(?:['’]\w+)?")


class RepeatFinder:
    """Reads a text piece by piece; `feed` costs O(characters).

    A word is read when a character follows that is no part of it: the last one may grow.
    """

    def __init__(self) -> None:
        self._unread = ""
        self._read_chars = 0
        self._last: list[tuple[str, int]] = []
        self._number = 0
        self._seen: dict[tuple[str, ...], list[int]] = {}

    def feed(self, piece: str) -> int | None:
        """Takes the next characters; returns where the repetition began, once there is one.

        It is the number of characters to keep: those before the sequence occurs once more.
        """
        self._unread += piece
        done = 0
        for match in _WORD.finditer(self._unread):
            if match.end() >= len(self._unread) - 1:  # an apostrophe may continue a word
                break
            done = match.end()
            began_at = self._word(match[0].casefold(), self._read_chars + match.start())
            if began_at is not None:
                return began_at
        self._unread = self._unread[done:]
        self._read_chars += done
        return None

    def _word(self, word: str, start: int) -> int | None:
        self._last = [*self._last[-(NGRAM_WORDS - 1) :], (word, start)]
        self._number += 1
        if len(self._last) < NGRAM_WORDS:
            return None
        places = self._seen.setdefault(tuple(word for word, _ in self._last), [])
        is_adjacent = bool(places) and self._number - places[-1] == NGRAM_WORDS
        places.append(self._number)
        if is_adjacent or len(places) >= OCCURRENCES_MAX:
            return self._last[0][1]
        return None
