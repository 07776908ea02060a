"""What a model wrote: its text as it is, without the thoughts before it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from carpool.sentences import whole_sentences

_THINK = "<think>"
_THOUGHTS = re.compile(rf"\s*(?:{_THINK}.*?(?:</think>|\Z)\s*)?", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What the model wrote. `is_complete`: there is text, and it ended by itself."""

    answer: str
    is_complete: bool


class TextReader:
    """Reads what the model writes, piece by piece: the answer is what follows its thoughts."""

    def __init__(self) -> None:
        self._head = ""
        self._is_begun = False

    def feed(self, piece: str) -> str:
        """Takes the next characters; returns what they add to the answer's text.

        Space before the text is left out.
        """
        if self._is_begun:
            return piece
        self._head += piece
        begin = self._head.lstrip()
        if _THINK.startswith(begin[: len(_THINK)]) and "</think>" not in begin:
            return ""  # thoughts, perhaps
        text = _without_thoughts(begin)
        self._is_begun = bool(text)
        return text


def _without_thoughts(text: str) -> str:
    thoughts = _THOUGHTS.match(text)
    return text[thoughts.end() :] if thoughts else text


def written_text(text: str, *, is_cut: bool) -> Written:
    """Returns a text as it was written, without thoughts and without space around it.

    `is_cut`: it did not end by itself.
    """
    text = _without_thoughts(text).strip()
    return Written(answer=text, is_complete=bool(text) and not is_cut)


def written_once(text: str) -> Written:
    """Returns the text before a repetition: its whole sentences, which are complete.

    Without a whole sentence it is all of the text, and not complete.
    """
    whole = whole_sentences(text)
    return Written(answer=whole or text.strip(), is_complete=bool(whole))
