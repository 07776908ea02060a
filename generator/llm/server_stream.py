"""What a server sends as an answer: tolerant in form, strict in values.

The one door for chunks, counts and names. What passes is well-formed text, whole numbers from 0 on,
or a refusal; nothing behind it fails. Of Server-Sent Events only `data:` lines say something.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from typing import Any

from generator.llm.protocol import LlmFinished, LlmRefusal

EVENT_BYTES_MAX = 16 << 20
"""A server that sends a longer line or event violates its protocol."""
COUNT_MAX = 2**53 - 1
NAME_CHARS_MAX = 1_000
_COUNTS = ("prompt_tokens", "completion_tokens")


class StreamError(Exception):
    """An error that the server names within an answer of status 200. `status`: HTTP, or 500."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def well_formed(text: object) -> str:
    """Returns a text with U+FFFD in place of lone surrogates; "" for what is no text."""
    if not isinstance(text, str):
        return ""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class EventReader:
    """Cuts bytes of an answer into chunks. `is_json`: one JSON object, for no stream."""

    def __init__(self, *, is_json: bool = False) -> None:
        self._is_json = is_json
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._open = ""
        self._data: list[str] = []
        self.is_done = False

    def feed(self, received: bytes, *, final: bool = False) -> Iterator[Mapping[str, Any]]:
        """Yields the chunks that are complete. Raises `LlmRefusal`, and `StreamError`."""
        self._open += self._decoder.decode(received, final)
        if len(self._open) + sum(map(len, self._data)) > EVENT_BYTES_MAX:
            raise LlmRefusal("broken", f"it sent an event of more than {EVENT_BYTES_MAX} bytes")
        if self._is_json:
            if final:
                self.is_done = True
                yield from _chunk(self._open)
            return
        # A CR at the end may be half of a CR LF.
        is_half = self._open.endswith("\r") and not final
        lines = self._open[: -1 if is_half else None].replace("\r\n", "\n").replace("\r", "\n")
        *whole, rest = lines.split("\n")
        self._open = rest + "\r" * is_half
        for line in [*whole, rest, ""] if final else whole:
            if line.startswith("data:"):
                self._data.append(line[5:].strip())
            elif not line and self._data:
                event, self._data = "\n".join(self._data), []
                if event == "[DONE]":
                    self.is_done = True
                else:
                    yield from _chunk(event)


def _chunk(event: str) -> Iterator[Mapping[str, Any]]:
    try:
        chunk = json.loads(event) if event else {}
    except (ValueError, RecursionError) as error:
        raise LlmRefusal(
            "broken", f"it violated its protocol: a chunk is no JSON ({error})"
        ) from error
    if not isinstance(chunk, dict):
        return
    if said := chunk.get("error"):
        named = said if isinstance(said, dict) else {"message": said}
        statuses = (_count(named.get(name)) for name in ("code", "status"))
        status = next((each for each in statuses if each and 400 <= each <= 599), 500)
        raise StreamError(status, well_formed(named.get("message")) or well_formed(str(said)))
    yield chunk


def _count(value: object) -> int | None:
    """Returns a whole number from 0 to `COUNT_MAX`; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX
    return value if is_count else None  # type: ignore[return-value]


class AnswerEnd:
    """Collects the fields of `LlmFinished` over the chunks of one answer."""

    def __init__(self, model: str) -> None:
        self.finish_reason: str | None = None
        self._model = model
        self._usage: Mapping[str, Any] | None = None
        self.has_text = False

    def take(self, chunk: Mapping[str, Any]) -> str:
        """Returns the text of the chunk, perhaps empty."""
        self._model = well_formed(chunk.get("model"))[:NAME_CHARS_MAX] or self._model
        usage, choices = chunk.get("usage"), chunk.get("choices")
        self._usage = usage if isinstance(usage, dict) else self._usage
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return ""
        reason = well_formed(choice.get("finish_reason"))[:NAME_CHARS_MAX]
        self.finish_reason = reason or self.finish_reason
        message = choice.get("delta") or choice.get("message")
        text = well_formed(message.get("content") if isinstance(message, dict) else None)
        text = text or well_formed(choice.get("text"))
        self.has_text |= bool(text)
        return text

    def so_far(self) -> LlmFinished | None:
        """Returns the counts up to here, of a server that sends them with each piece."""
        return None if self._usage is None else self.finished()

    def finished(self) -> LlmFinished:
        """Returns the end; tokens that the server did not count, or not as numbers, are 0."""
        usage = self._usage or {}
        details = usage.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        read, wrote = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        is_sound = read is not None and wrote is not None
        return LlmFinished(
            finish_reason=self.finish_reason or "stop",
            model=self._model,
            input_tokens=read or 0,
            output_tokens=wrote or 0,
            cached_tokens=min(cached or 0, read or 0),
            counts_cached=is_sound and cached is not None,
        )

    @property
    def bad_counts(self) -> bool:
        """Whether the server sent counts that are no whole numbers from 0 on."""
        counts = [
            (self._usage or {}).get(name, 0) for name in ("prompt_tokens", "completion_tokens")
        ]
        return any(_count(each) is None for each in counts)
