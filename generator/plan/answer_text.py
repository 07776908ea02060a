"""The two forms in which a model answers, and their parsers: text with markers, or a JSON object.

Text: one or two sentences, then markers such as `[1]`. It is its own answer, so little output is
spent on structure. A server that can keep a regular expression is asked for it (`text_regex`).

JSON: an object with the answer's text and the numbers that it cites, for servers that can keep a
JSON Schema only. A JSON decoder cannot read half an object, but a request that ends at `max_tokens`
leaves one, and partial answers are sent from one. The parser looks for the top-level fields
`answer` and `citations` in any order, and tolerates everything else. `written` uses a JSON decoder
to find out whether an object is complete.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import msgspec

from generator.plan.sentences import whole_sentences

ANSWER = "answer"
CITATIONS = "citations"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_HIGH, _LOW = r"\\u[dD][89abAB][\da-fA-F]{2}", r"\\u[dD][c-fC-F][\da-fA-F]{2}"
_ESCAPE = re.compile(rf"{_HIGH}{_LOW}|\\u.{{4}}|\\[^u]", re.DOTALL)
_CHARS = re.compile(
    rf'(?:[^"\\]|{_HIGH}{_LOW}|{_HIGH}(?=\\u.{{4}}|\\[^u]|[^\\])|(?!{_HIGH})\\u.{{4}}|\\[^u])+',
    re.DOTALL,
)
"""Whole characters of a string: half of a surrogate pair if the other half cannot follow."""
_THINK = "<think>"
_THOUGHTS = re.compile(rf"\s*(?:{_THINK}.*?(?:</think>|\Z)\s*)?", re.DOTALL)
_FENCE = re.compile(r"```\w*\s*(?=\{)")
_FENCE_END = re.compile(r"\}\s*```\s*\Z")
_KEY_CHARS_MAX = 64
_DIGITS_MAX = 9
MARKERS_MAX = 3
"""Markers at the end of a text: small models would otherwise list all passages."""
_SENTENCE = r"([^\[\]\r\n.!?]|[.!?][^\[\]\r\n ]|\. [a-z]| [A-Z]\.)+[.!?]"
"""It ends at punctuation before a space: "6.5 m", "U.S. and" and "P. G. Wodehouse" go on."""


class CitedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The object that the model must write."""

    answer: str
    citations: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What the model wrote. `is_complete`: a whole `CitedAnswer`, or text that ended by itself."""

    answer: str
    numbers: tuple[int, ...]
    is_complete: bool


class Reader(Protocol):
    """Reads what the model writes, piece by piece."""

    def feed(self, piece: str) -> str:
        """Takes the next characters; returns what they add to the answer's text."""
        ...


class TextReader:
    """Reads the form `text`: the answer is what is written after the model's thoughts, if any."""

    def __init__(self) -> None:
        self._head = ""
        self._is_begun = False

    def feed(self, piece: str) -> str:
        """See `Reader`. Space before the text is left out."""
        if self._is_begun:
            return piece
        self._head += piece
        begin = self._head.lstrip()
        if _THINK.startswith(begin[: len(_THINK)]) and "</think>" not in begin:
            return ""  # thoughts, perhaps
        text = _without_thoughts(begin)
        self._is_begun = bool(text)
        return text


class AnswerParser:
    """Reads the form `json`. Parses an object piece by piece; `feed` costs O(characters)."""

    def __init__(self) -> None:
        self.answer = ""
        self.numbers: list[int] = []
        self._text = TextReader()
        self._unread = ""  # the beginning of an escape
        self._depth = 0
        self._key = ""
        self._is_value = False
        self._in_string = False
        self._digits = ""

    def feed(self, piece: str) -> str:
        """Takes the next characters of the object; returns what they add to the answer's text."""
        unread, at, text = self._unread + self._text.feed(piece), 0, ""
        while at < len(unread):
            if not self._in_string:
                self._between(unread[at])
            elif (chars := _CHARS.match(unread, at)) is not None:
                text += self._said(chars[0])
                at = chars.end()
                continue
            elif unread[at] == '"':
                self._in_string = False
            else:
                break  # the rest of an escape follows
            at += 1
        self._unread = unread[at:]
        self.answer += text
        return text

    def _between(self, char: str) -> None:
        """Takes a character outside of strings."""
        if self._reads_numbers() and char.isdecimal():
            self._digits += char
            return
        self._end_number()
        if char == '"':
            self._in_string = True
            if self._depth == 1 and not self._is_value:
                self._key = ""
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        elif self._depth == 1 and char in ":,":
            self._is_value = char == ":"

    def _reads_numbers(self) -> bool:
        return self._depth == 2 and self._is_value and self._key == CITATIONS

    def _end_number(self) -> None:
        """Adds a number that something follows; a number that was cut off may lack digits."""
        if self._digits and len(self._digits) <= _DIGITS_MAX:
            self.numbers.append(int(self._digits))
        self._digits = ""

    def _said(self, chars: str) -> str:
        """Takes characters of a string; returns what they add to the answer's text."""
        if self._depth != 1:
            return ""
        text = _ESCAPE.sub(_unescaped, chars)
        if self._is_value:
            return text if self._key == ANSWER else ""
        self._key = (self._key + text)[:_KEY_CHARS_MAX]
        return ""


def _unescaped(escape: re.Match[str]) -> str:
    """Returns the character of an escape; a replacement for half a pair and for what is none."""
    kind, digits = escape[0][1], escape[0][2:]
    if kind != "u":
        return _ESCAPES.get(kind, REPLACEMENT)
    try:
        if len(digits) > 4:  # a character beyond the first plane has two UTF-16 code units
            high, low = int(digits[:4], 16), int(digits[6:], 16)
            return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
        unit = int(digits, 16)
    except ValueError:
        return REPLACEMENT
    return REPLACEMENT if 0xD800 <= unit <= 0xDFFF else chr(unit)


def written(text: str) -> Written:
    """Returns what the model wrote: a whole object, the readable part of one, or plain text.

    A server that ignores `response_format` writes plain text, which is kept and not complete.
    """
    text = _bare(text)
    try:
        whole = msgspec.json.decode(text.encode("utf-8", "replace"), type=CitedAnswer)
    except msgspec.DecodeError:
        pass
    else:
        return Written(answer=whole.answer, numbers=whole.citations, is_complete=True)
    if not text.startswith("{"):
        return Written(answer=text.strip(), numbers=(), is_complete=False)
    reader = AnswerParser()
    reader.feed(text)
    return Written(answer=reader.answer, numbers=tuple(reader.numbers), is_complete=False)


def _bare(text: str) -> str:
    """Returns what a model wrote without its thoughts, and without a Markdown fence."""
    text = _without_thoughts(text)
    fence = _FENCE.match(text)
    bare = text[fence.end() :] if fence else text
    return _FENCE_END.sub("}", bare) if bare.startswith("{") else bare


def _without_thoughts(text: str) -> str:
    thoughts = _THOUGHTS.match(text)
    return text[thoughts.end() :] if thoughts else text


def written_text(text: str, *, is_cut: bool) -> Written:
    """Returns a text as it was written, without thoughts. Its markers are its citations, if any.

    `is_cut`: it did not end by itself.
    """
    text = _without_thoughts(text).strip()
    return Written(answer=text, numbers=(), is_complete=bool(text) and not is_cut)


def written_once(text: str) -> Written:
    """Returns the text before a repetition: its whole sentences, which are complete.

    Without a whole sentence it is all of the text, and not complete.
    """
    whole = whole_sentences(text)
    return Written(answer=whole or text.strip(), numbers=(), is_complete=bool(whole))


def text_regex(passages: Collection[int]) -> str:
    """Returns the regular expression of the form `text` with passages of these numbers.

    One or two sentences without brackets and line breaks, then one to `MARKERS_MAX` markers, each
    after a space; without passages no marker. `max_tokens` bounds the length. It has no counted
    repetitions of sentences' characters: a server works out for each token which next ones fit, and
    with them vLLM's CPU build writes two tokens a second.
    """
    text = f"{_SENTENCE}( {_SENTENCE})?"
    if not passages:
        return text
    numbers = "|".join(map(str, passages))
    return rf"{text}( \[({numbers})\]){{1,{min(len(passages), MARKERS_MAX)}}}"


def answer_schema(passages: Collection[int], *, answer_chars_max: int) -> dict[str, object]:
    """Returns the JSON Schema of a `CitedAnswer` with passages of these numbers.

    With passages, at least one number is required: small models otherwise leave the list empty. The
    model chooses the number, perhaps badly. The answer is the first field, because numbers that are
    written before it are guesses.
    """
    return {
        "type": "object",
        "properties": {
            ANSWER: {"type": "string", "minLength": 1, "maxLength": answer_chars_max},
            CITATIONS: _numbers_schema(passages),
        },
        "required": [ANSWER, CITATIONS],
        "additionalProperties": False,
    }


def _numbers_schema(passages: Collection[int]) -> dict[str, object]:
    if not passages:
        return {"type": "array", "items": {"type": "integer"}, "maxItems": 0}
    numbers = {"type": "integer", "enum": list(passages)}
    return {"type": "array", "items": numbers, "minItems": 1, "maxItems": len(passages)}
