<<<<<<< HEAD
"""The headers of dead letters, and the marks (`rag.dlq.marks.v1`) of replayed or dropped letters.

A dead letter is the raw bytes of a record that could not be used, its own headers, and headers that
say why.
=======
"""The dead letter: the bytes and headers of a record that could not be used, and the reason.

And its mark (`rag.dlq.marks.v1`), which says that a letter was replayed or dropped.
>>>>>>> 5698ae8 (docs: write the prose of the schemas in plain words)
"""

from __future__ import annotations

from typing import Literal

from schemas.headers import CONNECT_PREFIX, ERROR_PREFIX
from schemas.record import Headers, NonNegative, Record, Source

CONNECT_NAMES = (
    "topic",
    "partition",
    "offset",
    "stage",
    "exception.class.name",
    "exception.message",
    "exception.stacktrace",
)
"""The names that Kafka Connect uses too; it adds connector.name and task.id."""

TEXT_BYTES_MAX = 4_096
"""Bound of each text header, so that a dead letter fits its topic (`schemas.topics`)."""

Action = Literal["replayed", "dropped"]


class DeadLetterMark(Record, frozen=True, kw_only=True):
<<<<<<< HEAD
    """What was done about the letter at `letter`. The newest mark of a letter counts."""
=======
    """What was done about the dead letter at `letter`. The newest mark of a letter counts."""
>>>>>>> 5698ae8 (docs: write the prose of the schemas in plain words)

    letter: Source
    action: Action
    marked_us: NonNegative


def dead_letter_headers(
    original: Headers,
    *,
    source: Source,
    group: str,
    stage: str,
    attempts: int,
    class_name: str,
    message: str,
    stacktrace: str = "",
    connect_names: bool = False,
) -> Headers:
<<<<<<< HEAD
    """Returns the original headers, then the `rag.errors.*`, with texts cut at 4 KiB.
=======
    """Returns the original headers followed by `rag.errors.*`; texts are cut at 4 KiB.
>>>>>>> 5698ae8 (docs: write the prose of the schemas in plain words)

    `connect_names` adds the headers of Kafka Connect (KIP-298).
    """
    added = {
        "topic": source.topic,
        "partition": str(source.partition),
        "offset": str(source.offset),
        "timestamp": str(source.timestamp_ms),
        "group": group,
        "stage": stage,
        "attempts": str(attempts),
        "exception.class.name": class_name,
        "exception.message": message,
        "exception.stacktrace": stacktrace,
    }
    headers = original + tuple((ERROR_PREFIX + name, _cut(text)) for name, text in added.items())
    if not connect_names:
        return headers
    connect = {name: added[name] for name in CONNECT_NAMES} | {
        "connector.name": group,
        "task.id": "0",
    }
    return headers + tuple((CONNECT_PREFIX + name, _cut(text)) for name, text in connect.items())


def is_error_header(name: str) -> bool:
    """Returns whether a header says why a record is a dead letter."""
    return name.startswith((ERROR_PREFIX, CONNECT_PREFIX))


def split_headers(headers: Headers) -> tuple[Headers, dict[str, str]]:
    """Returns the original headers of a letter, and its `rag.errors.*` without the prefix.

<<<<<<< HEAD
    The record may have had such headers itself, so only the last block counts; earlier ones are in
    neither result. Bytes that are not UTF-8 (a text cut inside a character) are replaced.
=======
    A record may have had such headers before. Only the last block of them is ours; earlier ones are
    left out of both results. Bytes that are not UTF-8 (a text that was cut) are replaced.
>>>>>>> 5698ae8 (docs: write the prose of the schemas in plain words)
    """
    begin = max(
        (at for at, (name, _) in enumerate(headers) if name == ERROR_PREFIX + "topic"),
        default=len(headers),
    )
    original = tuple(header for header in headers[:begin] if not is_error_header(header[0]))
    ours = {
        name.removeprefix(ERROR_PREFIX): (value or b"").decode(errors="replace")
        for name, value in headers[begin:]
        if name.startswith(ERROR_PREFIX)
    }
    return original, ours


def _cut(text: str) -> bytes:
    return text.encode(errors="replace")[:TEXT_BYTES_MAX]
