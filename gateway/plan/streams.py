"""Turns pieces of an answer, then the answer, into OpenAI's events. Pure.

A stream cannot take text back. So deltas are pieces of one generation without a gap, and after a
lost piece or another generation none follows. At the end the rest of the answer is one delta, if
what was sent begins it; else the stream fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gateway.plan.objects import (
    AddressOf,
    Object,
    chat_annotations,
    chat_usage,
    finish_reason_of,
    item_id,
    message_item,
    record_of,
    response_object,
    search_item,
    status_of,
    text_part,
)
from gateway.plan.sources import source_event
from producers.openai.questions import OpenAIQuestion
from schemas.answer import Answer, PartialAnswer

Events: TypeAlias = Iterator[Object]
MIXED = (
    "the model began another answer after a part of this one was sent, so the text that was sent "
    "is not that of the answer; ask again"
)


@dataclass(slots=True)
class SentText:
    """The text that a stream has sent. White space waits until text follows it."""

    sent: str = ""
    _held: str = ""
    _generation_id: str | None = None
    _seq: int = -1
    _is_broken: bool = False

    def add(self, piece: PartialAnswer) -> str:
        """Returns what may be sent of a piece; "" for nothing."""
        if self._generation_id is None:
            self._generation_id = piece.generation_id
        is_next = piece.generation_id == self._generation_id and piece.seq == self._seq + 1
        self._is_broken |= not is_next
        if self._is_broken:
            return ""
        self._seq = piece.seq
        text = self._held + piece.text
        if not self.sent:
            text = text.lstrip()
        whole = text.rstrip()
        self._held = text[len(whole) :]
        self.sent += whole
        return whole

    def rest(self, answer: str) -> str | None:
        """Returns the rest of an answer; None: what was sent is of another text."""
        return answer[len(self.sent) :] if answer.startswith(self.sent) else None


@dataclass(slots=True)
class ResponseStream:
    """The events of `/v1/responses`. Each has its number."""

    asked: OpenAIQuestion
    response_id: str
    created_s: int
    address_of: AddressOf
    text: SentText = field(default_factory=SentText)
    has_failed: bool = False
    _number: int = 0
    _has_message: bool = False

    def begin(self) -> Events:
        """Yields the events before the search has ended."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._object())
        if self.asked.has_search:
            item = search_item(self.asked, None, self.response_id)
            yield self._event("response.output_item.added", output_index=0, item=item)
            for kind in ("in_progress", "searching"):
                yield self._of_search(kind, item["id"])

    def piece(self, piece: PartialAnswer) -> Events:
        """Yields the delta of a piece, if there is one."""
        if delta := self.text.add(piece):
            yield from self._delta(delta)

    def end(self, answer: Answer) -> Events:
        """Yields what is left, and the end."""
        text = answer.answer or ""
        if (rest := self.text.rest(text)) is None:
            yield from self.fail(MIXED, answer)
            return
        if rest or not self._has_message:
            yield from self._delta(rest)
        part = text_part(answer, self.address_of)
        for number, each in enumerate(part["annotations"]):
            kind = "response.output_text.annotation.added"
            yield self._of_text(kind, annotation_index=number, annotation=each)
        yield self._of_text("response.output_text.done", text=text, logprobs=[])
        yield self._of_text("response.content_part.done", part=part)
        message = message_item(answer, self.response_id, self.address_of)
        yield self._event("response.output_item.done", output_index=self._index, item=message)
        output = [message]
        if self.asked.has_search:
            found = search_item(self.asked, answer, self.response_id)
            yield self._of_search("completed", found["id"])
            yield self._event("response.output_item.done", output_index=0, item=found)
            output = [found, message]
        status = status_of(answer)
        whole = self._object(status=status, output=output, answer=answer)
        yield self._event(f"response.{status}", response=whole)

    def fail(self, message: str, answer: Answer | None = None) -> Events:
        """Yields the end of a stream without a whole answer."""
        self.has_failed = True
        error = {"code": "server_error", "message": message}
        failed = self._object(status="failed", error=error, answer=answer)
        yield self._event("response.failed", response=failed)

    @property
    def _index(self) -> int:
        return 1 if self.asked.has_search else 0

    def _delta(self, delta: str) -> Events:
        if not self._has_message:
            self._has_message = True
            item = message_item(None, self.response_id, self.address_of)
            yield self._event("response.output_item.added", output_index=self._index, item=item)
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._of_text("response.content_part.added", part=part)
        if delta:
            yield self._of_text("response.output_text.delta", delta=delta, logprobs=[])

    def _object(self, **fields: Any) -> Object:
        return response_object(self.asked, self.response_id, self.created_s, **fields)

    def _of_text(self, kind: str, **fields: object) -> Object:
        item = item_id("msg", self.response_id)
        return self._event(kind, item_id=item, output_index=self._index, content_index=0, **fields)

    def _of_search(self, kind: str, item: str) -> Object:
        return self._event(f"response.file_search_call.{kind}", output_index=0, item_id=item)

    def _event(self, kind: str, **fields: object) -> Object:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


@dataclass(slots=True)
class ChatStream:
    """The chunks of `/v1/chat/completions`."""

    asked: OpenAIQuestion
    chat_id: str
    created_s: int
    address_of: AddressOf
    text: SentText = field(default_factory=SentText)
    has_failed: bool = False

    def begin(self) -> Events:
        """Yields the first chunk, which has no text."""
        yield self._chunk({"role": "assistant", "content": ""})

    def piece(self, piece: PartialAnswer) -> Events:
        """Yields the chunk of a piece, if there is one."""
        if delta := self.text.add(piece):
            yield self._chunk({"content": delta})

    def end(self, answer: Answer) -> Events:
        """Yields what is left, and the end."""
        if (rest := self.text.rest(answer.answer or "")) is None:
            yield from self.fail(MIXED, answer)
            return
        if rest:
            yield self._chunk({"content": rest})
        last = self._chunk({}, finish_reason_of(answer))
        last["choices"][0]["delta"]["annotations"] = chat_annotations(answer, self.address_of)
        if (event := source_event(answer, self.address_of)) is not None:
            last["event"] = event
        yield last | {"carpool": record_of(answer)}
        if self.asked.has_usage:
            yield self._chunk(None) | {"usage": chat_usage(answer)}

    def fail(self, message: str, answer: Answer | None = None) -> Events:
        """Yields an error, which the SDK raises."""
        self.has_failed = True
        yield {"error": {"message": message, "type": "server_error", "param": None, "code": None}}

    def _chunk(self, delta: Object | None, finish_reason: str | None = None) -> Object:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return {
            "id": self.chat_id,
            "object": "chat.completion.chunk",
            "created": self.created_s,
            "model": self.asked.model,
            "choices": [] if delta is None else [choice],
        }
