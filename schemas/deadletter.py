"""The dead letter: the raw bytes of a record that could not be used, its own headers, and ours that say why."""

from __future__ import annotations

from schemas.record import Headers, Source

PREFIX = "rag.errors."
TEXT_BYTES_MAX = 4_096
"""Bound of each text header, so that a dead letter never outgrows its topic (`schemas.topics`)."""


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
) -> Headers:
    """Returns every original header followed by the `rag.errors.*` of `conventions.md`; texts are cut at 4 KiB."""
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
    return original + tuple((PREFIX + name, text.encode()[:TEXT_BYTES_MAX]) for name, text in added.items())
