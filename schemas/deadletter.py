"""The headers of dead letters, and the marks (`rag.dlq.marks.v1`) of replayed or dropped letters.

A dead letter is the raw bytes of a record that could not be used, its own headers, and headers that
say why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas.headers import ERROR_PREFIX
from schemas.record import Headers, NonNegative, Record, Source

TEXT_BYTES_MAX = 4_096
"""Bound of each text header, so that a dead letter never outgrows its topic (`schemas.topics`)."""

Action = Literal["replayed", "dropped"]


class DeadLetterMark(Record, frozen=True, kw_only=True):
    """What was done about the letter at `letter`. The newest mark of a letter counts."""

    letter: Source
    action: Action
    marked_us: NonNegative


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Which service rejected a record, and why.

    `class_name` ends in the reason, after its last dot: `RecordError.not_json`.
    """

    group: str
    stage: str
    attempts: int
    class_name: str
    message: str


def dead_letter_headers(source: Source, reason: Reason) -> Headers:
    """Returns the `rag.errors.*` of a record that was read at `source`, with texts cut at 4 KiB."""
    added = {
        "topic": source.topic,
        "partition": str(source.partition),
        "offset": str(source.offset),
        "timestamp": str(source.timestamp_ms),
        "group": reason.group,
        "stage": reason.stage,
        "attempts": str(reason.attempts),
        "exception.class.name": reason.class_name,
        "exception.message": reason.message,
    }
    return tuple((ERROR_PREFIX + name, _cut(text)) for name, text in added.items())


def split_headers(headers: Headers) -> tuple[Headers, dict[str, str]]:
    """Returns the original headers of a letter, and its `rag.errors.*` without the prefix.

    The record may have had such headers itself, so only the last block counts; earlier ones are in
    neither result. Bytes that are not UTF-8 (a text cut inside a character) are replaced.
    """
    begin = max(
        (at for at, (name, _) in enumerate(headers) if name == ERROR_PREFIX + "topic"),
        default=len(headers),
    )
    original = tuple(header for header in headers[:begin] if not header[0].startswith(ERROR_PREFIX))
    ours = {
        name.removeprefix(ERROR_PREFIX): (value or b"").decode(errors="replace")
        for name, value in headers[begin:]
        if name.startswith(ERROR_PREFIX)
    }
    return original, ours


def _cut(text: str) -> bytes:
    return text.encode(errors="replace")[:TEXT_BYTES_MAX]
