"""Parses the model's JSON object while it is written: the answer's text, and the numbers it cites.

A JSON decoder cannot read half an object, but a request that ends at `max_tokens` leaves one, and
partial answers are sent from one. The parser looks for the top-level fields `answer` and
`citations` in any order, and tolerates everything else. `written` uses a JSON decoder to find out
whether an object is complete.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

ANSWER = "answer"
CITATIONS = "citations"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_KEY_CHARS_MAX = 64
_DIGITS_MAX = 9


class CitedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The object that the model must write."""

    answer: str
    citations: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What the model wrote. `is_complete`: it is a whole `CitedAnswer`."""

    answer: str
    numbers: tuple[int, ...]
    is_complete: bool


class AnswerParser:
    """Parses an object piece by piece; `feed` costs O(characters)."""

    def __init__(self) -> None:
        self.answer = ""
        self.numbers: list[int] = []
        self._depth = 0
        self._key = ""
        self._is_value = False
        self._in_string = False
        self._escape = ""
        self._high_surrogate = ""
        self._digits = ""

    def feed(self, piece: str) -> str:
        """Takes the next characters of the object; returns what they add to the answer's text."""
        added = []
        for char in piece:
            if self._in_string:
                added.append(self._in_text(char))
            else:
                self._between(char)
        text = "".join(added)
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

    def _in_text(self, char: str) -> str:
        """Takes a character inside a string; returns what it adds to the answer's text."""
        if self._escape:
            text = self._escaped(char)
        elif char == "\\":
            self._escape = char
            text = ""
        elif char == '"':
            self._in_string = False
            text = self._lone_surrogate()
        else:
            text = self._lone_surrogate() + char
        if self._depth != 1:
            return ""
        if not self._is_value:
            self._key = (self._key + text)[:_KEY_CHARS_MAX]
            return ""
        return text if self._key == ANSWER else ""

    def _escaped(self, char: str) -> str:
        self._escape += char
        if self._escape[1] != "u":
            self._escape = ""
            return self._lone_surrogate() + _ESCAPES.get(char, REPLACEMENT)
        if len(self._escape) < 6:
            return ""
        digits, self._escape = self._escape[2:], ""
        try:
            return self._unit(int(digits, 16))
        except ValueError:
            return self._lone_surrogate() + REPLACEMENT

    def _unit(self, unit: int) -> str:
        """Takes a UTF-16 code unit; a character beyond the first plane has two."""
        if 0xDC00 <= unit <= 0xDFFF and self._high_surrogate:
            high, self._high_surrogate = ord(self._high_surrogate), ""
            return chr(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
        text = self._lone_surrogate()
        if 0xD800 <= unit <= 0xDBFF:
            self._high_surrogate = chr(unit)
            return text
        return text + (REPLACEMENT if 0xDC00 <= unit <= 0xDFFF else chr(unit))

    def _lone_surrogate(self) -> str:
        lone, self._high_surrogate = self._high_surrogate, ""
        return REPLACEMENT if lone else ""


def written(text: str) -> Written:
    """Returns what the model wrote: a whole object, the readable part of one, or plain text.

    A server that ignores `response_format` writes plain text, which is kept and not complete.
    """
    try:
        whole = msgspec.json.decode(text.encode("utf-8", "replace"), type=CitedAnswer)
    except msgspec.DecodeError:
        pass
    else:
        return Written(answer=whole.answer, numbers=whole.citations, is_complete=True)
    if not text.lstrip().startswith("{"):
        return Written(answer=text.strip(), numbers=(), is_complete=False)
    reader = AnswerParser()
    reader.feed(text)
    return Written(answer=reader.answer, numbers=tuple(reader.numbers), is_complete=False)


def answer_schema(passages: int, *, answer_chars_max: int) -> dict[str, object]:
    """Returns the JSON Schema of a `CitedAnswer` with passages 1 to `passages`.

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


def _numbers_schema(passages: int) -> dict[str, object]:
    if passages == 0:
        return {"type": "array", "items": {"type": "integer"}, "maxItems": 0}
    numbers = {"type": "integer", "enum": list(range(1, passages + 1))}
    return {"type": "array", "items": numbers, "minItems": 1, "maxItems": passages}
