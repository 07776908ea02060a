"""Makes a dead letter from a record, reads it back from its topic, and selects letters. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from carpool.kafka.records import Message, Output
from carpool.kafka.sizes import record_bytes
from schemas.deadletter import DeadLetterMark, dead_letter_headers, split_headers
from schemas.deadletter import Reason as Reason
from schemas.headers import (
    DEADLINE_HEADER,
    ERROR_PREFIX,
    HEADERS_LEFT_OUT_HEADER,
    IGNORED_NAMES,
    REPLAYED_FROM_HEADER,
    RETRY_HEADERS,
    TRUNCATED_HEADER,
    ignored_retry_headers,
)
from schemas.record import Headers, Source
from schemas.topics import (
    DEAD_LETTER_SUFFIX,
    QUERIES,
    QUERIES_DEAD,
    RETRY_TOPICS,
    TOPICS,
    in_class_of,
)

CUT_NOTES_BYTES = 256
"""Limit of the two headers that say what was cut, and of longer length fields."""
CUT_VALUE_BYTES = 16 * 1024
"""What a letter keeps of a value that does not fit. It cannot be replayed, and shows how it began.
"""
HEADER_FRAME_BYTES = 10
"""The two length fields of a header, at most."""

NOT_REPLAYED = (*RETRY_HEADERS, *IGNORED_NAMES.values(), REPLAYED_FROM_HEADER)
"""Headers that a replayed record does not have: its attempts begin again."""


def make_letter(
    *, source: Source, key: bytes | None, value: bytes | None, headers: Headers, reason: Reason
) -> Output:
    """Returns the letter of the record at `source`, for the partition of the same number.

    The headers of a retry are renamed, so a record with the headers of a letter is a new query. A
    letter that is too large for its topic (the record was compressed) is cut, the value first, to
    `CUT_VALUE_BYTES` at most, then headers, then the key. Its headers name what was cut.
    """
    headers = ignored_retry_headers(headers)
    is_retry = source.topic in RETRY_TOPICS
    read_from = in_class_of(source.topic, QUERIES).name if is_retry else source.topic
    topic = read_from + DEAD_LETTER_SUFFIX
    ours = dead_letter_headers(source, reason)
    limit = next(
        (each.max_message_bytes for each in TOPICS if each.name == topic),
        QUERIES_DEAD.max_message_bytes,
    )
    if record_bytes(key, value, headers + ours) > limit:
        key, value, headers, ours = _cut(key, value or b"", headers, ours, limit)
    return Output(
        topic=topic, key=key, value=value, headers=headers + ours, partition=source.partition
    )


def _cut(
    key: bytes | None, value: bytes, headers: Headers, ours: Headers, limit: int
) -> tuple[bytes | None, bytes, Headers, Headers]:
    room = limit - record_bytes(None, None, ours) - CUT_NOTES_BYTES
    key = key if len(key or b"") <= room else None
    room -= len(key or b"")
    kept = []
    for name, content in headers:
        size = len(name.encode()) + len(content or b"") + HEADER_FRAME_BYTES
        if size <= room:
            kept.append((name, content))
            room -= size
    if len(value) > room:
        room = min(room, CUT_VALUE_BYTES)
        ours += ((TRUNCATED_HEADER, str(len(value)).encode()),)
    if len(kept) < len(headers):
        ours += ((HEADERS_LEFT_OUT_HEADER, str(len(headers) - len(kept)).encode()),)
    return key, value[:room], tuple(kept), ours


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A letter in its topic.

    `headers`: those of the record; `errors`: `rag.errors.*` without the prefix; `mark`: None for a
    letter that was neither replayed nor dropped. `is_null`: the record had no value.
    """

    place: Source
    key: bytes | None
    value: bytes
    headers: Headers
    errors: dict[str, str]
    mark: DeadLetterMark | None = None
    is_null: bool = False

    @property
    def topic(self) -> str:
        """The topic of the record, from the name of the letter's topic: headers can be forged."""
        return self.place.topic.removesuffix(DEAD_LETTER_SUFFIX)

    @property
    def reason(self) -> str:
        """The reason in one word, or `unknown` for a letter of another program."""
        return self.errors.get("exception.class.name", "").rpartition(".")[2] or "unknown"

    @property
    def message(self) -> str:
        """Why the record was rejected, in words."""
        return self.errors.get("exception.message", "")

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the record was cut, so that it can be replayed."""
        return self.reason != "unreadable" and not any(
            ERROR_PREFIX + name in (TRUNCATED_HEADER, HEADERS_LEFT_OUT_HEADER)
            for name in self.errors
        )


def read_letter(message: Message, mark: DeadLetterMark | None = None) -> DeadLetter:
    """Returns any record of a dead-letter topic as a letter; missing fields are empty."""
    headers, errors = split_headers(message.headers)
    return DeadLetter(
        place=message.source,
        key=message.key,
        value=message.value or b"",
        headers=headers,
        errors=errors,
        mark=mark,
        is_null=message.value is None,
    )


def replay_output(letter: DeadLetter, *, deadline_ms: int | None = None) -> Output:
    """Returns the record that sends a letter back to its topic, as it was first written.

    `deadline_ms`, epoch milliseconds, replaces a deadline that has passed: a header has priority
    over the body.
    """
    left_out = (*NOT_REPLAYED, DEADLINE_HEADER) if deadline_ms is not None else NOT_REPLAYED
    headers = tuple(header for header in letter.headers if header[0] not in left_out)
    if deadline_ms is not None:
        headers += ((DEADLINE_HEADER, str(deadline_ms).encode()),)
    headers += ((REPLAYED_FROM_HEADER, letter.place.place.encode()),)
    value = None if letter.is_null else letter.value
    return Output(topic=letter.topic, key=letter.key, value=value, headers=headers)


Place = tuple[str, int, int]
"""Topic, partition and offset of a letter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The conditions of the selected letters; an empty field or None selects all.

    Bounds are inclusive; times, in epoch milliseconds, are of the writing of the letter. `marked`:
    also letters that were replayed or dropped.
    """

    topics: frozenset[str] = frozenset()
    places: frozenset[Place] = frozenset()
    reasons: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    marked: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether anything but topics is given, so that not all letters are selected."""
        has_age = self.since_ms is not None or self.until_ms is not None
        return bool(self.places or self.reasons) or has_age

    def takes_topic(self, topic: str) -> bool:
        """Returns whether letters of this dead-letter topic may be selected."""
        named = self.topics | {place[0] for place in self.places}
        return not named or topic in named

    def takes(self, letter: DeadLetter) -> bool:
        """Returns whether this letter is selected."""
        at = letter.place
        return (
            self.takes_topic(at.topic)
            and (not self.places or (at.topic, at.partition, at.offset) in self.places)
            and (self.since_ms is None or at.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or at.timestamp_ms <= self.until_ms)
            and (not self.reasons or letter.reason in self.reasons)
            and (self.marked or letter.mark is None)
        )
