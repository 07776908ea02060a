"""What a server sends for one answer, made into values that cannot break anything behind it.

Tolerant in form: a stream of events or one JSON body, in any mixture of fields. Strict in values:
every text is well-formed Unicode, every count is a whole number that a record can hold.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from generator.llm.protocol import LlmFinished
from schemas.record import well_formed

COUNT_MAX = 10**15
EVENT_CHARS_MAX = 16 * 1024 * 1024
_NAME_CHARS_MAX = 200
_REFUSAL_CHARS_MAX = 2_000
_INT_DIGITS_MAX = 20
_STATUS_OF = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "BAD_REQUEST": 400,
    "REQUEST_LIMIT_EXCEEDED": 429,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
}
"""Statuses of errors that name a code or type only."""


class ServerError(Exception):
    """An error that a server names within a stream, with the HTTP status it amounts to."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WrongPage(Exception):
    """The reply is no answer of an API; the message says what it is."""


class ServerEvents:
    """Reads the bytes of one reply.

    `has_text`: some text of an answer or of a refusal has come. `is_done`: nothing more is read.
    `has_odd_counts`: a count of tokens was no whole number, or more than all tokens. `feed` raises
    `ServerError`, `WrongPage`, and `ValueError` for what is no JSON or has more than
    `EVENT_CHARS_MAX` characters in one event.
    """

    def __init__(self, model: str, content_type: str = "") -> None:
        if "html" in content_type.lower():
            raise WrongPage(content_type.partition(";")[0].strip()[:_NAME_CHARS_MAX])
        self.finish_reason: str | None = None
        self.is_done = self.has_odd_counts = False
        self._model, self._refusal = model, ""
        self.has_text = False
        self._usage: Mapping[str, Any] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._halves = codecs.getincrementaldecoder("utf-16-le")("replace")
        self._texts = 0
        self._parts: list[str] = []
        self._size = 0
        self._data: list[str] = []
        self._data_size = 0
        self._is_body: bool | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the answer is whole: the server named a reason, or said that it is done."""
        return self.finish_reason is not None or (self.is_done and self.has_text)

    def feed(self, received: bytes, *, is_last: bool = False) -> str:
        """Returns the text that these bytes add to the answer, perhaps none."""
        text = self._decoder.decode(received, final=is_last)
        if self._is_body is None:
            text = text.lstrip("\ufeff \r\n\t")
            self._is_body = text[0] in "{[<" if text else None
        self._size += len(text)
        if self._size > EVENT_CHARS_MAX:
            raise ValueError(f"one event has more than {EVENT_CHARS_MAX} characters")
        self._parts.append(text)
        if self._is_body:
            return self._body() if is_last else ""
        if not is_last and "\n" not in text and "\r" not in text:
            return ""
        whole = "".join(self._parts)
        half = "\r" if whole.endswith("\r") and not is_last else ""  # of a line's end, perhaps
        lines = whole.removesuffix(half).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._parts = [] if is_last else [lines.pop() + half]
        added = ""
        for line in [*lines, ""] if is_last else lines:
            try:
                added += self._line(line)
            except (ServerError, ValueError):
                if not self.has_ended:
                    raise
                self.is_done = True  # the answer is whole, whatever follows it
        self._size = sum(map(len, self._parts)) + self._data_size
        # A half of a surrogate pair at the end of a piece waits for the other half.
        return added + self._halves.decode(b"", final=is_last or self.has_ended)

    def _body(self) -> str:
        body = "".join(self._parts)
        if body[0] == "<":
            raise WrongPage("text/html")
        self.is_done = True
        return self._take(_decoded(body)) + self._halves.decode(b"", final=True)

    def _line(self, line: str) -> str:
        """Takes a line of a stream: part of an event, its end, or what is no text of an answer."""
        if self.is_done:
            return ""
        name, _, value = line.partition(":")
        if name in ("data", "error"):  # llama.cpp names the event before its data
            self._data.append(value.removeprefix(" "))
            self._data_size += len(line) + 1  # and the end of the line
            if self._data_size > EVENT_CHARS_MAX:
                raise ValueError(f"one event has more than {EVENT_CHARS_MAX} characters")
        if line or not self._data:
            return ""
        data, self._data, self._data_size = "\n".join(self._data), [], 0
        if data.strip() == "[DONE]":
            self.is_done = True
            return ""
        return self._take(_decoded(data)) if data.strip() else ""

    def _take(self, chunk: object) -> str:
        """Returns the text of a chunk, or of a whole answer."""
        if not isinstance(chunk, dict):
            return ""
        error = chunk.get("error") or ("message" in chunk and "choices" not in chunk and chunk)
        if error:
            raise _error_of(error)
        self._model = well_formed(chunk.get("model"))[:_NAME_CHARS_MAX] or self._model
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return ""
        reason = well_formed(choice.get("finish_reason"))[:_NAME_CHARS_MAX]
        self.finish_reason = reason or self.finish_reason
        said = choice.get("delta") or choice.get("message")
        if not isinstance(said, dict):
            said = {"content": choice.get("text")}
        text, refusal = _text(said.get("content")), _text(said.get("refusal"))
        self._refusal = (self._refusal + refusal)[:_REFUSAL_CHARS_MAX]
        self.has_text = self.has_text or bool(text or refusal)
        self._texts += bool(text)
        return self._halves.decode(text.encode("utf-16-le", "surrogatepass"))

    def so_far(self) -> LlmFinished:
        """Returns the counts up to here: the server's, or a token for each event with text."""
        end = self.finished()
        return end if self._usage else replace(end, output_tokens=self._texts)

    def finished(self) -> LlmFinished:
        """Returns the end; tokens that the server did not count, or not in numbers, are 0."""
        usage = self._usage or {}
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        counts = [usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), cached or 0]
        is_odd = [not _is_count(count) for count in counts]
        read, written, from_cache = (
            0 if odd else count for odd, count in zip(is_odd, counts, strict=True)
        )
        self.has_odd_counts = any(is_odd) or from_cache > read
        return LlmFinished(
            finish_reason=self.finish_reason or "stop",
            model=self._model,
            input_tokens=read,
            output_tokens=written,
            cached_tokens=0 if self.has_odd_counts else from_cache,
            counts_cached=cached is not None and not self.has_odd_counts,
            refusal=well_formed(self._refusal),
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX


def _text(content: object) -> str:
    """Returns the text of a content: a string, or a list of parts."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _decoded(text: str) -> object:
    """Returns what the JSON says. Raises `ValueError`, also for JSON that is nested too deeply."""
    try:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):  # halves of emojis, NaN, huge numbers
            return json.loads(text, parse_int=lambda n: int(n) if len(n) <= _INT_DIGITS_MAX else -1)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _error_of(error: object) -> ServerError:
    """Returns an error object as an error; its status is 500 if it names none."""
    named: Mapping[str, object] = error if isinstance(error, dict) else {"message": error}
    status = 500
    for name in ("code", "status", "status_code", "error_code", "type"):
        value = str(named.get(name) or "")
        found = int(value) if value.isdecimal() and len(value) == 3 else _STATUS_OF.get(value, 0)
        if 400 <= found <= 599:
            status = found
            break
    return ServerError(status, well_formed(named.get("message")) or json.dumps(error))
